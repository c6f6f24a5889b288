"""The device server of a machine of any speed: ``python -m tests.support.patient_server INSTANCE``.

By the ICD a command of a subarray must begin within 5 s. A controller that is killed and started again takes longer on
a busy machine. Here a command may begin for as long as a test waits for anything, and last for as long as a test does.
"""

from msgspec.structs import replace

from devices.kernel import server
from facade.kernel.icd import load
from facade.kernel.icd.model import CommandDefinition
from tests.support.waiting import HANG

_LASTS = 5 * HANG


def _patient(command: CommandDefinition) -> CommandDefinition:
    within = command.approval_within and HANG
    ceiling = max(command.ceiling, _LASTS)
    return replace(command, start_within=HANG, deadline=_LASTS, ceiling=ceiling, approval_within=within)


def main() -> None:
    icd = load.load()
    classes = {name: replace(one, commands=tuple(map(_patient, one.commands))) for name, one in icd.classes.items()}
    patient = replace(icd, classes=classes)
    load._installed = lambda telescope: patient
    server.main()


if __name__ == "__main__":
    main()

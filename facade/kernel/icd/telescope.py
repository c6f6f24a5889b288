"""The interface as a deployment of one telescope has it.

The files of the interface have the names of one telescope's devices, `facade.kernel.names.TELESCOPE`. The devices of
another telescope have the same classes, topics and messages, and differ in the domain of their names. Attributes that
only some telescopes have, such as those of single dishes, are left out elsewhere. Two telescopes may share one Tango
database and one Kafka cluster: there the names of device-server instances and of logins begin with the telescope, too.
"""

from msgspec.structs import replace

from facade.kernel.icd.model import Condition, DeviceClass, Executor, Icd
from facade.kernel.names import TELESCOPE, domain


def of_telescope(icd: Icd, telescope: str) -> Icd:
    """Return the interface with the names and the attributes of a telescope."""
    named = f"{domain(TELESCOPE)}/", f"{domain(telescope)}/"

    def renamed(one: DeviceClass | Executor | Condition, *fields: str) -> dict[str, str]:
        return {field: getattr(one, field).replace(*named) for field in fields}

    classes = {
        name: replace(
            one,
            **renamed(one, "device"),
            attributes=tuple(each for each in one.attributes if telescope in (each.telescopes or (telescope,))),
        )
        for name, one in icd.classes.items()
    }
    return replace(
        icd,
        telescope=telescope,
        classes=classes,
        executors={name: replace(one, **renamed(one, "device")) for name, one in icd.executors.items()},
        conditions={name: replace(one, **renamed(one, *_TEXTS)) for name, one in icd.conditions.items()},
    )


_TEXTS = ("description", "check", "response")
"""Fields of a condition that may name devices."""


def is_foreign(device: str, telescope: str) -> bool:
    """Return whether a device belongs to the facility at another telescope, which shares the Tango database."""
    found = device.partition("/")[0].lower()
    return found.endswith(domain("")) and found != domain(telescope)


def instance_of(telescope: str, instance: str) -> str:
    """Return the name of a device-server instance in the Tango database, such as ``low-control`` for ``control``.

    The interface's own telescope has the plain names, with which sites are in operation.
    """
    begin = "" if telescope == TELESCOPE else f"{telescope}-"
    return begin + instance.removeprefix(begin)

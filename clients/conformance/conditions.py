"""Whether alarm conditions are shown; the way of an alarm is shown by `clients.conformance.alarm`."""

from clients.conformance.case import Check, ConditionOf, demand
from clients.conformance.system import System
from clients.conformance.verdicts import Mismatch

_ENUM = "AlarmState"


def _shown(system: System, of: ConditionOf) -> str:
    config = system.config(of.device, of.name)
    demand(list(system.icd.enums[_ENUM]), list(config.enum_labels))
    seen = system.observation.before.get((of.device, of.name))
    if seen is None or seen.error:
        raise Mismatch("a state of the alarm", seen.error if seen else "no value")
    if seen.value is None:
        return "INVALID"
    return system.icd.enums[_ENUM][seen.value]


CONDITION_CHECKS: tuple[Check[ConditionOf], ...] = (
    Check(
        aspect="state",
        claims=("Icd.conditions", "Condition.label", "Condition.description", "DeviceClass.conditions"),
        judge=_shown,
    ),
)
"""What is seen of a condition without an alarm; its label and description are those of its attribute."""

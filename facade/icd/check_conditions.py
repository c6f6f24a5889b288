"""Checks of the alarm conditions: complete for an operator, and possible."""

import re

from facade.icd.checks import Checks, Entries, Found
from facade.icd.model import Condition, Icd

_NAME = re.compile(r"[a-z][A-Za-z0-9]{0,99}")


def _conditions(icd: Icd) -> Entries:
    return (("conditions.toml", f"conditions[{name}]", (name, one)) for name, one in icd.conditions.items())


of_condition = Checks(_conditions)


@of_condition.rule
def condition_texts_are_complete(icd: Icd, name: str, one: Condition) -> Found:
    """Require a name fit for an attribute, a label, and texts that end with a full stop."""
    if not _NAME.fullmatch(name):
        yield "", f"expected lowerCamelCase, at most 100 letters, got {name!r}"
    if not one.label.strip():
        yield "label", f"expected text, got {one.label!r}"
    for key in ("description", "check", "response", "ends"):
        text = getattr(one, key)
        if not text.strip().endswith("."):
            yield key, f"expected text that ends with a full stop, got {text!r}"
    if not one.causes:
        yield "causes", "expected at least one cause, got none"
    for at, text in enumerate(one.causes):
        if not text.strip().endswith("."):
            yield f"causes[{at}]", f"expected text that ends with a full stop, got {text!r}"


@of_condition.rule
def condition_delays_are_possible(icd: Icd, name: str, one: Condition) -> Found:
    """Require delays from 0 to 3600 s: a longer one would hide what is the matter."""
    for key in ("on_delay", "off_delay", "re_alarm"):
        value = getattr(one, key)
        if not 0 <= value <= 3600:
            yield key, f"expected 0 to 3600, got {value:g}"


@of_condition.rule
def condition_growths_are_more_than_once(icd: Icd, name: str, one: Condition) -> Found:
    """Require a factor above 1: an alarm that does not grow is no other one."""
    if one.re_alarm_growth and not one.re_alarm_growth > 1:
        yield "re_alarm_growth", f"expected a factor above 1, or 0 for none, got {one.re_alarm_growth:g}"


@of_condition.rule
def suppressors_exist(icd: Icd, name: str, one: Condition) -> Found:
    """Require other conditions of the ICD, and none that is suppressed by this one, even by way of others."""
    for other in one.suppressed_by:
        if other not in icd.conditions:
            yield "suppressed_by", f"expected one of {sorted(icd.conditions)}, got {other!r}"
        elif name in _suppressors(icd, other):
            yield "suppressed_by", f"expected one that does not depend on this one, got {other!r}"


CHECKS = tuple(of_condition)


def _suppressors(icd: Icd, name: str) -> set[str]:
    """Return a condition and all that suppress it, directly or not."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        one = waiting.pop()
        if one not in found and one in icd.conditions:
            found.add(one)
            waiting += icd.conditions[one].suppressed_by
    return found

"""Checks of the alarm conditions: complete for an operator, and possible."""

import re
from collections.abc import Iterator

from facade.icd.finding import Finding
from facade.icd.model import Icd

_NAME = re.compile(r"[a-z][A-Za-z0-9]{0,99}")


def condition_texts_are_complete(icd: Icd) -> Iterator[Finding]:
    """Require a name fit for an attribute, a label, and texts that end with a full stop."""
    for name, one in icd.conditions.items():
        if not _NAME.fullmatch(name):
            yield _at(name, "", f"expected lowerCamelCase, at most 100 letters, got {name!r}")
        if not one.label.strip():
            yield _at(name, "label", f"expected text, got {one.label!r}")
        for key in ("description", "response"):
            text = getattr(one, key)
            if not text.strip().endswith("."):
                yield _at(name, key, f"expected text that ends with a full stop, got {text!r}")


def condition_delays_are_possible(icd: Icd) -> Iterator[Finding]:
    """Require delays from 0 to 3600 s: a longer one would hide what is the matter."""
    for name, one in icd.conditions.items():
        for key in ("on_delay", "off_delay"):
            value = getattr(one, key)
            if not 0 <= value <= 3600:
                yield _at(name, key, f"expected 0 to 3600, got {value:g}")


def suppressors_exist(icd: Icd) -> Iterator[Finding]:
    """Require other conditions of the ICD, and none that is suppressed by this one, even by way of others."""
    for name, one in icd.conditions.items():
        for other in one.suppressed_by:
            if other not in icd.conditions:
                yield _at(name, "suppressed_by", f"expected one of {sorted(icd.conditions)}, got {other!r}")
            elif name in _suppressors(icd, other):
                yield _at(name, "suppressed_by", f"expected one that does not depend on this one, got {other!r}")


CHECKS = (condition_texts_are_complete, condition_delays_are_possible, suppressors_exist)


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


def _at(name: str, key: str, what: str) -> Finding:
    return Finding("conditions.toml", f"conditions[{name}].{key}" if key else f"conditions[{name}]", what)

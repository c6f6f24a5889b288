"""Checks of the device classes, the executors' names, the enumerations, the version and the alarm conditions."""

import math
import re
from collections.abc import Iterator
from string import Formatter

import msgspec

from facade.icd.checks import Checks, Entries, Mistakes
from facade.icd.finding import IcdFinding
from facade.icd.model import Condition, DeviceClass, Executor, Icd

_VERSION = re.compile(r"\d+\.\d+\.\d+")
_NAME_PART = re.compile(r"[A-Za-z0-9_.-]+")
_CLASS_NAME = re.compile(r"[A-Z][A-Za-z0-9]*")

of_class = Checks(lambda icd: ((f"{one.name}.toml", "", (one,)) for one in icd.classes.values()))


@Checks(lambda icd: (("executors.toml", f"executors[{name}]", (one,)) for name, one in icd.executors.items())).rule
def executor_patterns_are_names(icd: Icd, one: Executor) -> Mistakes:
    """Require names as devices have them."""
    placeholder = "subarray" if "{subarray" in one.device else "node"
    if problem := _pattern_problem(one.device, placeholder, parts=3):
        yield "device", problem


def version_is_semantic(icd: Icd) -> Iterator[IcdFinding]:
    """Require a version of the form MAJOR.MINOR.PATCH."""
    if not _VERSION.fullmatch(icd.version):
        yield IcdFinding("icd.toml", "version", f"expected MAJOR.MINOR.PATCH, got {icd.version!r}")


def enums_have_labels(icd: Icd) -> Iterator[IcdFinding]:
    """Require labels, all different and none empty."""
    for name, labels in icd.enums.items():
        if not labels or not all(labels) or len(set(labels)) < len(labels):
            what = f"expected different labels that are not empty, got {list(labels)}"
            yield IcdFinding("enums.toml", f"enums[{name}]", what)


@of_class.rule
def class_texts_are_complete(icd: Icd, one: DeviceClass) -> Mistakes:
    """Require a CamelCase name, and a description that ends with a full stop."""
    if not _CLASS_NAME.fullmatch(one.name):
        yield "name", f"expected UpperCamelCase, got {one.name!r}"
    if not one.description.strip().endswith("."):
        yield "description", f"expected text that ends with a full stop, got {one.description!r}"


@of_class.rule
def device_patterns_are_names(icd: Icd, one: DeviceClass) -> Mistakes:
    """Require three parts and no other placeholder than one of ``{node}`` and ``{subarray}``."""
    placeholder = "subarray" if "{subarray" in one.device else "node"
    problem = _pattern_problem(one.device, placeholder, parts=3)
    if problem:
        yield "device", problem


@of_class.rule
def instance_patterns_are_names(icd: Icd, one: DeviceClass) -> Mistakes:
    """Require one part and no other placeholder than ``{rack}``."""
    problem = _pattern_problem(one.instance, "rack", parts=1)
    if problem:
        yield "instance", problem


@of_class.rule
def device_patterns_are_unique(icd: Icd, one: DeviceClass) -> Mistakes:
    """Require different device names; Tango does not tell upper from lower case in them."""
    owner = next(other for other in icd.classes.values() if other.device.casefold() == one.device.casefold())
    if owner.name != one.name:
        yield "device", f"expected a name of its own, got {one.device!r} of {owner.name}"


def numbers_are_finite(icd: Icd) -> Iterator[IcdFinding]:
    """Refuse ``nan`` and ``inf``, which TOML can say."""
    for one in icd.classes.values():
        for key, value in _numbers(one):
            if not math.isfinite(value):
                yield IcdFinding(f"{one.name}.toml", key, f"expected a finite number, got {value}")
    for name, executor in icd.executors.items():
        for key, value in _numbers(executor, f"executors[{name}]."):
            if not math.isfinite(value):
                yield IcdFinding("executors.toml", key, f"expected a finite number, got {value}")
    for name, topic in icd.topics.items():
        for key, value in _numbers(topic):
            if not math.isfinite(value):
                what = f"expected a finite number, got {value}"
                yield IcdFinding("topics.toml", f"topics[{name}].{key}", what)


def _pattern_problem(pattern: str, placeholder: str, *, parts: int) -> str:
    """Return the mistake of a pattern; empty: there is none."""
    try:
        names = [name for _, name, _, _ in Formatter().parse(pattern) if name is not None]
        example = pattern.format(**{placeholder: 1})
    except (ValueError, KeyError, IndexError, AttributeError):
        names, example = ["?"], ""
    if any(name != placeholder for name in names):
        return f"expected no placeholder but {{{placeholder}}} with an integer format, got {pattern!r}"
    found = example.split("/")
    if len(found) != parts or not all(_NAME_PART.fullmatch(part) for part in found):
        return f"expected {parts} part(s) of letters, digits and _.- with / between, got {pattern!r}"
    return ""


def _numbers(table: msgspec.Struct, prefix: str = "") -> Iterator[tuple[str, float]]:
    for key in table.__struct_fields__:
        value = getattr(table, key)
        if isinstance(value, float):
            yield f"{prefix}{key}", value
        elif isinstance(value, msgspec.Struct):
            yield from _numbers(value, f"{prefix}{key}.")
        elif key in ("attributes", "commands"):
            for entry in value:
                yield from _numbers(entry, f"{prefix}{key}[{entry.name}].")


_NAME = re.compile(r"[a-z][A-Za-z0-9]{0,99}")


def _conditions(icd: Icd) -> Entries:
    return (("conditions.toml", f"conditions[{name}]", (name, one)) for name, one in icd.conditions.items())


of_condition = Checks(_conditions)


@of_condition.rule
def condition_texts_are_complete(icd: Icd, name: str, one: Condition) -> Mistakes:
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
def condition_delays_are_possible(icd: Icd, name: str, one: Condition) -> Mistakes:
    """Require delays from 0 to 3600 s: a longer one would hide the problem."""
    for key in ("on_delay", "off_delay", "re_alarm"):
        value = getattr(one, key)
        if not 0 <= value <= 3600:
            yield key, f"expected 0 to 3600, got {value:g}"


@of_condition.rule
def condition_growths_are_more_than_once(icd: Icd, name: str, one: Condition) -> Mistakes:
    """Require a factor above 1: an alarm that does not grow is no other one."""
    if one.re_alarm_growth and not one.re_alarm_growth > 1:
        yield "re_alarm_growth", f"expected a factor above 1, or 0 for none, got {one.re_alarm_growth:g}"


@of_condition.rule
def suppressors_exist(icd: Icd, name: str, one: Condition) -> Mistakes:
    """Require other conditions of the ICD, and none that is suppressed by this one, even by way of others."""
    for other in one.suppressed_by:
        if other not in icd.conditions:
            yield "suppressed_by", f"expected one of {sorted(icd.conditions)}, got {other!r}"
        elif name in _suppressors(icd, other):
            yield "suppressed_by", f"expected one that does not depend on this one, got {other!r}"


CHECKS = (
    *of_class,
    *of_condition,
    executor_patterns_are_names,
    version_is_semantic,
    enums_have_labels,
    numbers_are_finite,
)


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

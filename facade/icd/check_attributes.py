"""Checks of what an attribute says about itself; where its value comes from is in `check_sources`."""

import re
from collections.abc import Iterator
from itertools import pairwise

from facade.icd.finding import Finding
from facade.icd.model import MOST_PUSHED, Attribute, DeviceClass, Icd
from facade.icd.units import known_units

_LOWER_CAMEL_CASE = re.compile(r"[a-z][A-Za-z0-9]*")
_SKAS_OWN = re.compile(r"pointing_cal_[A-Z]{3}\d{3}")
"""Names that TM's software reads, whatever the rule."""
_TANGOS_OWN = frozenset({"state", "status"})
_INTEGERS = frozenset({"DevLong", "DevLong64", "DevULong64"})
_NUMBERS = _INTEGERS | {"DevDouble"}
_LIMITS = ("min_alarm", "min_warning", "max_warning", "max_alarm")


def names_are_lower_camel_case(icd: Icd) -> Iterator[Finding]:
    """Require SKA's form of attribute names."""
    for owner, attribute in each(icd):
        if not _LOWER_CAMEL_CASE.fullmatch(attribute.name) and not _SKAS_OWN.fullmatch(attribute.name):
            yield at(owner, attribute, "name", f"expected lowerCamelCase, got {attribute.name!r}")


def names_are_not_tangos(icd: Icd) -> Iterator[Finding]:
    """Refuse State and Status, which every Tango device has already."""
    for owner, attribute in each(icd):
        if attribute.name.casefold() in _TANGOS_OWN:
            what = f"expected a name that Tango does not use itself, got {attribute.name!r}"
            yield at(owner, attribute, "name", what)


def names_are_unique(icd: Icd) -> Iterator[Finding]:
    """Require different names; Tango does not tell upper from lower case in them."""
    for owner in icd.classes.values():
        yield from _repeated(owner, "name")


def labels_are_unique(icd: Icd) -> Iterator[Finding]:
    """Require different labels: the same ones cannot be told apart on a screen."""
    for owner in icd.classes.values():
        yield from _repeated(owner, "label")


def texts_are_complete(icd: Icd) -> Iterator[Finding]:
    """Require a label, and a description that ends with a full stop."""
    for owner, attribute in each(icd):
        if not attribute.label.strip():
            yield at(owner, attribute, "label", f"expected text, got {attribute.label!r}")
        if not attribute.description.strip().endswith("."):
            what = f"expected text that ends with a full stop, got {attribute.description!r}"
            yield at(owner, attribute, "description", what)


def enums_exist(icd: Icd) -> Iterator[Finding]:
    """Require an enumeration of enums.toml for a DevEnum, and for nothing else."""
    for owner, attribute in each(icd):
        if attribute.type != "DevEnum" and attribute.enum is not None:
            what = f"expected none, because the type is {attribute.type}, got {attribute.enum!r}"
            yield at(owner, attribute, "enum", what)
        elif attribute.type == "DevEnum" and attribute.enum not in icd.enums:
            yield at(owner, attribute, "enum", f"expected one of {sorted(icd.enums)}, got {attribute.enum!r}")


def lengths_are_positive(icd: Icd) -> Iterator[Finding]:
    """Require a length of 0 (a scalar) or more (the longest spectrum)."""
    for owner, attribute in each(icd):
        if attribute.length < 0:
            yield at(owner, attribute, "length", f"expected integer >= 0, got {attribute.length}")


def images_have_rows(icd: Icd) -> Iterator[Finding]:
    """Require rows of numbers, of some length, for an image."""
    for owner, attribute in each(icd):
        if attribute.height < 0:
            yield at(owner, attribute, "height", f"expected integer >= 0, got {attribute.height}")
        elif attribute.height and (attribute.length <= 0 or attribute.type not in _NUMBERS):
            what = f"expected 0, because only numbers with a length make an image, got {attribute.height}"
            yield at(owner, attribute, "height", what)


def spectra_can_be_pushed(icd: Icd) -> Iterator[Finding]:
    """Require that everything but images can be sent as an event."""
    for owner, attribute in each(icd):
        if not attribute.height and not attribute.is_pushed:
            yield at(owner, attribute, "length", f"expected integer <= {MOST_PUSHED}, got {attribute.length}")


def units_are_known(icd: Icd) -> Iterator[Finding]:
    """Require a unit of the list, where one is stated."""
    for owner, attribute in each(icd):
        if attribute.unit is not None and attribute.unit not in known_units(icd):
            yield at(owner, attribute, "unit", f"expected one of {sorted(known_units(icd))}, got {attribute.unit!r}")


def limits_are_for_numbers(icd: Icd) -> Iterator[Finding]:
    """Refuse limits but on numeric scalars; those of an integer are integers."""
    for owner, attribute in each(icd):
        if attribute.limits is None:
            continue
        if attribute.type not in _NUMBERS or attribute.length:
            what = f"expected none, because the attribute is no numeric scalar, got {attribute.type}"
            yield at(owner, attribute, "limits", what)
        elif attribute.type in _INTEGERS:
            for name, limit in _limits(attribute):
                if not limit.is_integer():
                    yield at(owner, attribute, f"limits.{name}", f"expected an integer, got {limit:g}")


def limits_are_ordered(icd: Icd) -> Iterator[Finding]:
    """Require min_alarm < min_warning < max_warning < max_alarm, of those that are given."""
    for owner, attribute in each(icd):
        given = list(_limits(attribute))
        for (lower, low), (upper, high) in pairwise(given):
            if not low < high:
                what = f"expected number > {lower} = {low:g}, got {high:g}"
                yield at(owner, attribute, f"limits.{upper}", what)


def sampling_is_possible(icd: Icd) -> Iterator[Finding]:
    """Require 0 <= shortest <= longest and 0 < longest, and deadbands that are not negative."""
    for owner in icd.classes.values():
        tables = [("sampling", owner.sampling)]
        own = (one for one in owner.attributes if one.sampling)
        tables += [(f"attributes[{one.name}].sampling", one.sampling or owner.sampling) for one in own]
        for key, sampling in tables:
            file = f"{owner.name}.toml"
            if not sampling.shortest >= 0:
                yield Finding(file, f"{key}.shortest", f"expected number >= 0, got {sampling.shortest:g}")
            elif not (sampling.longest >= sampling.shortest and sampling.longest > 0):
                what = f"expected number > 0 and >= shortest = {sampling.shortest:g}, got {sampling.longest:g}"
                yield Finding(file, f"{key}.longest", what)
            for name in ("absolute", "relative"):
                value = getattr(sampling, name)
                if not value >= 0:
                    yield Finding(file, f"{key}.{name}", f"expected number >= 0, got {value:g}")


def staleness_outlasts_sampling(icd: Icd) -> Iterator[Finding]:
    """Refuse that an attribute is stale before it may speak again."""
    for owner in icd.classes.values():
        problem = _staleness_problem(owner.stale_after, owner.sampling.shortest)
        if problem:
            yield Finding(f"{owner.name}.toml", "stale_after", problem)
        for attribute in owner.attributes:
            if attribute.stale_after is None and attribute.sampling is None:
                continue
            limit = owner.stale_after if attribute.stale_after is None else attribute.stale_after
            problem = _staleness_problem(limit, (attribute.sampling or owner.sampling).shortest)
            if problem:
                yield at(owner, attribute, "stale_after", problem)


def _staleness_problem(limit: float, shortest: float) -> str:
    if limit == 0 or limit > max(shortest, 0):
        return ""
    return f"expected 0 or number > sampling.shortest = {shortest:g}, got {limit:g}"


CHECKS = (
    names_are_lower_camel_case,
    names_are_not_tangos,
    names_are_unique,
    labels_are_unique,
    texts_are_complete,
    enums_exist,
    lengths_are_positive,
    images_have_rows,
    spectra_can_be_pushed,
    units_are_known,
    limits_are_for_numbers,
    limits_are_ordered,
    sampling_is_possible,
    staleness_outlasts_sampling,
)


def each(icd: Icd) -> Iterator[tuple[DeviceClass, Attribute]]:
    """Visit every attribute with its class."""
    for owner in icd.classes.values():
        for attribute in owner.attributes:
            yield owner, attribute


def at(owner: DeviceClass, attribute: Attribute, key: str, what: str) -> Finding:
    """Make a finding about one key of one attribute."""
    return Finding(f"{owner.name}.toml", f"attributes[{attribute.name}].{key}", what)


def _repeated(owner: DeviceClass, key: str) -> Iterator[Finding]:
    seen: set[str] = set()
    for attribute in owner.attributes:
        value: str = getattr(attribute, key)
        if value.casefold() in seen:
            yield at(owner, attribute, key, f"expected a {key} of its own, got {value!r} again")
        seen.add(value.casefold())


def _limits(attribute: Attribute) -> Iterator[tuple[str, float]]:
    for name in _LIMITS:
        limit = getattr(attribute.limits, name, None)
        if limit is not None:
            yield name, float(limit)

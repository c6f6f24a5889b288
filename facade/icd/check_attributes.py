"""Checks of what an attribute says about itself; where its value comes from is in `check_sources`."""

import re
from collections.abc import Iterator
from itertools import pairwise

from facade.icd.checks import Checks, Entries, Found, entries
from facade.icd.finding import Finding
from facade.icd.model import MOST_PUSHED, Attribute, DeviceClass, Icd
from facade.icd.units import known_units

_LOWER_CAMEL_CASE = re.compile(r"[a-z][A-Za-z0-9]*")
_SKAS_OWN = re.compile(r"pointing_cal_[A-Z]{3}\d{3}|_lrcEvent")
"""Names that TM's software reads, whatever the rule."""
_TANGOS_OWN = frozenset({"state", "status"})
_INTEGERS = frozenset({"DevLong", "DevLong64", "DevULong64"})
_NUMBERS = _INTEGERS | {"DevDouble"}
_LIMITS = ("min_alarm", "min_warning", "max_warning", "max_alarm")


def _timed(icd: Icd) -> Entries:
    """Give what may say how often it speaks: each class, and each attribute."""
    yield from ((f"{owner.name}.toml", "", (owner, owner)) for owner in icd.classes.values())
    yield from entries("attributes")(icd)


of_attribute, of_timing = Checks(entries("attributes")), Checks(_timed)


@of_attribute.rule
def names_are_lower_camel_case(icd: Icd, owner: DeviceClass, attribute: Attribute) -> Found:
    """Require SKA's form of attribute names."""
    if not _LOWER_CAMEL_CASE.fullmatch(attribute.name) and not _SKAS_OWN.fullmatch(attribute.name):
        yield "name", f"expected lowerCamelCase, got {attribute.name!r}"


@of_attribute.rule
def names_are_not_tangos(icd: Icd, owner: DeviceClass, attribute: Attribute) -> Found:
    """Refuse State and Status, which every Tango device has already."""
    if attribute.name.casefold() in _TANGOS_OWN:
        yield "name", f"expected a name that Tango does not use itself, got {attribute.name!r}"


def names_are_unique(icd: Icd) -> Iterator[Finding]:
    """Require different names; Tango does not tell upper from lower case in them."""
    yield from _repeated(icd, "name")


def labels_are_unique(icd: Icd) -> Iterator[Finding]:
    """Require different labels: the same ones cannot be told apart on a screen."""
    yield from _repeated(icd, "label")


@of_attribute.rule
def texts_are_complete(icd: Icd, owner: DeviceClass, attribute: Attribute) -> Found:
    """Require a label, and a description that ends with a full stop."""
    if not attribute.label.strip():
        yield "label", f"expected text, got {attribute.label!r}"
    if not attribute.description.strip().endswith("."):
        yield "description", f"expected text that ends with a full stop, got {attribute.description!r}"


@of_attribute.rule
def enums_exist(icd: Icd, owner: DeviceClass, attribute: Attribute) -> Found:
    """Require an enumeration of enums.toml for a DevEnum, and for nothing else."""
    if attribute.type != "DevEnum" and attribute.enum is not None:
        yield "enum", f"expected none, because the type is {attribute.type}, got {attribute.enum!r}"
    elif attribute.type == "DevEnum" and attribute.enum not in icd.enums:
        yield "enum", f"expected one of {sorted(icd.enums)}, got {attribute.enum!r}"


@of_attribute.rule
def lengths_are_positive(icd: Icd, owner: DeviceClass, attribute: Attribute) -> Found:
    """Require a length of 0 (a scalar) or more (the longest spectrum)."""
    if attribute.length < 0:
        yield "length", f"expected integer >= 0, got {attribute.length}"


@of_attribute.rule
def images_have_rows(icd: Icd, owner: DeviceClass, attribute: Attribute) -> Found:
    """Require rows of numbers, of some length, for an image."""
    if attribute.height < 0:
        yield "height", f"expected integer >= 0, got {attribute.height}"
    elif attribute.height and (attribute.length <= 0 or attribute.type not in _NUMBERS):
        yield "height", f"expected 0, because only numbers with a length make an image, got {attribute.height}"


@of_attribute.rule
def spectra_can_be_pushed(icd: Icd, owner: DeviceClass, attribute: Attribute) -> Found:
    """Require that everything but images can be sent as an event."""
    if not attribute.height and not attribute.is_pushed:
        yield "length", f"expected integer <= {MOST_PUSHED}, got {attribute.length}"


@of_attribute.rule
def units_are_known(icd: Icd, owner: DeviceClass, attribute: Attribute) -> Found:
    """Require a unit of the list, where one is stated."""
    if attribute.unit is not None and attribute.unit not in known_units(icd):
        yield "unit", f"expected one of {sorted(known_units(icd))}, got {attribute.unit!r}"


@of_attribute.rule
def limits_are_for_numbers(icd: Icd, owner: DeviceClass, attribute: Attribute) -> Found:
    """Refuse limits but on numeric scalars; those of an integer are integers."""
    if attribute.limits is None:
        return
    if attribute.type not in _NUMBERS or attribute.length:
        yield "limits", f"expected none, because the attribute is no numeric scalar, got {attribute.type}"
    elif attribute.type in _INTEGERS:
        for name, limit in _limits(attribute):
            if not limit.is_integer():
                yield f"limits.{name}", f"expected an integer, got {limit:g}"


@of_attribute.rule
def limits_are_ordered(icd: Icd, owner: DeviceClass, attribute: Attribute) -> Found:
    """Require min_alarm < min_warning < max_warning < max_alarm, of those that are given."""
    given = list(_limits(attribute))
    for (lower, low), (upper, high) in pairwise(given):
        if not low < high:
            yield f"limits.{upper}", f"expected number > {lower} = {low:g}, got {high:g}"


@of_timing.rule
def sampling_is_possible(icd: Icd, owner: DeviceClass, one: DeviceClass | Attribute) -> Found:
    """Require 0 <= shortest <= longest and 0 < longest, and deadbands that are not negative."""
    sampling = one.sampling
    if sampling is None:
        return
    if not sampling.shortest >= 0:
        yield "sampling.shortest", f"expected number >= 0, got {sampling.shortest:g}"
    elif not (sampling.longest >= sampling.shortest and sampling.longest > 0):
        what = f"expected number > 0 and >= shortest = {sampling.shortest:g}, got {sampling.longest:g}"
        yield "sampling.longest", what
    for name in ("absolute", "relative"):
        if not getattr(sampling, name) >= 0:
            yield f"sampling.{name}", f"expected number >= 0, got {getattr(sampling, name):g}"


@of_timing.rule
def staleness_outlasts_sampling(icd: Icd, owner: DeviceClass, one: DeviceClass | Attribute) -> Found:
    """Refuse that an attribute is stale before it may speak again."""
    if one.stale_after is None and one.sampling is None:
        return
    limit = owner.stale_after if one.stale_after is None else one.stale_after
    shortest = (one.sampling or owner.sampling).shortest
    if limit != 0 and not limit > max(shortest, 0):
        yield "stale_after", f"expected 0 or number > sampling.shortest = {shortest:g}, got {limit:g}"


CHECKS = (*of_attribute, *of_timing, names_are_unique, labels_are_unique)


def each(icd: Icd) -> Iterator[tuple[DeviceClass, Attribute]]:
    """Visit every attribute with its class."""
    for owner in icd.classes.values():
        for attribute in owner.attributes:
            yield owner, attribute


def at(owner: DeviceClass, attribute: Attribute, key: str, what: str) -> Finding:
    """Make a finding about one key of one attribute."""
    return Finding(f"{owner.name}.toml", f"attributes[{attribute.name}].{key}", what)


def _repeated(icd: Icd, key: str) -> Iterator[Finding]:
    seen: set[tuple[str, str]] = set()
    for owner, attribute in each(icd):
        value: str = getattr(attribute, key)
        if (owner.name, value.casefold()) in seen:
            yield at(owner, attribute, key, f"expected a {key} of its own, got {value!r} again")
        seen.add((owner.name, value.casefold()))


def _limits(attribute: Attribute) -> Iterator[tuple[str, float]]:
    for name in _LIMITS:
        limit = getattr(attribute.limits, name, None)
        if limit is not None:
            yield name, float(limit)

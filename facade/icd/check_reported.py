"""Checks of the attributes whose values controllers report."""

import json
from collections.abc import Iterator

from facade.icd.checks import Checks, Found, entries
from facade.icd.finding import Finding
from facade.icd.model import Attribute, DeviceClass, Icd

_TOPIC, _MESSAGE = "state", "state"
_BITS = {"DevLong": 32, "DevLong64": 64}
_TYPES = ("DevString", "DevEnum", *_BITS)

of_attribute = Checks(entries("attributes"))


@of_attribute.rule
def reported_values_have_no_source(icd: Icd, owner: DeviceClass, attribute: Attribute) -> Found:
    """Refuse a value that is reported and made of records or an account as well."""
    if attribute.reported and (attribute.source or attribute.account):
        yield "reported", "expected false beside a source or an account, got true"


def reported_values_have_a_topic(icd: Icd) -> Iterator[Finding]:
    """Require the topic that they are reported on."""
    topic = icd.topics.get(_TOPIC)
    reported = any(attribute.reported for owner in icd.classes.values() for attribute in owner.attributes)
    if reported and (topic is None or topic.message != _MESSAGE):
        what = f"expected a topic with the message {_MESSAGE!r}, because there are reported attributes, got none"
        yield Finding("topics.toml", f"topics[{_TOPIC}]", what)


@of_attribute.rule
def reported_types_are_readable(icd: Icd, owner: DeviceClass, attribute: Attribute) -> Found:
    """Require a type that the text of a report can be read as; a list only of texts."""
    if not attribute.reported:
        return
    if attribute.type not in _TYPES:
        yield "type", f"expected one of {list(_TYPES)}, because it is reported, got {attribute.type!r}"
    elif attribute.length and attribute.type != "DevString":
        yield "length", f"expected 0, because only texts are reported as lists, got {attribute.length}"


@of_attribute.rule
def initial_values_fit(icd: Icd, owner: DeviceClass, attribute: Attribute) -> Found:
    """Require an initial value that a controller could report; refuse one where nobody reports."""
    if attribute.initial is None:
        return
    if not attribute.reported:
        yield "initial", f"expected none, because the attribute is not reported, got {attribute.initial!r}"
    elif problem := _problem(icd, attribute, attribute.initial):
        yield "initial", f"expected {problem}, got {attribute.initial!r}"


@of_attribute.rule
def obs_states_have_a_beginning(icd: Icd, owner: DeviceClass, attribute: Attribute) -> Found:
    """Require an initial obsState: commands are judged by it before anybody has reported one."""
    if attribute.name == "obsState" and owner.commands and attribute.reported and attribute.initial is None:
        yield "initial", "expected a value, because commands depend on it, got none"


CHECKS = (*of_attribute, reported_values_have_a_topic)


def _problem(icd: Icd, attribute: Attribute, text: str) -> str:
    """Say what is expected of a text that does not fit; an empty text when it does."""
    if attribute.type == "DevEnum":
        labels = icd.enums.get(attribute.enum or "", ())
        return "" if text in labels else f"one of {list(labels)}"
    if attribute.length:
        found = _json(text)
        fits = isinstance(found, list) and len(found) <= attribute.length and all(isinstance(one, str) for one in found)
        return "" if fits else f"a JSON list of at most {attribute.length} texts"
    if bits := _BITS.get(attribute.type):
        found = _json(text)
        limit = 2 ** (bits - 1)
        fits = isinstance(found, int) and not isinstance(found, bool) and -limit <= found < limit
        return "" if fits else f"an integer of {bits} bits"
    return ""


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None

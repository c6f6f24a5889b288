"""Compares two interfaces: each difference with the step of the version that it asks for, and those concerned.

The table ``diff.toml`` has the effect of a change of every field and of every keyword of a JSON Schema. This module
walks through both interfaces at once and asks the table wherever they differ.
"""

import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from math import inf
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from facade.errors import IcdError
from facade.icd.explain import shown
from facade.icd.fields import Schema
from facade.icd.model import Icd
from facade.icd.units import unit_of


class VersionStep(IntEnum):
    """Step of the version that a difference asks for (semantic versioning)."""

    NONE, PATCH, MINOR, MAJOR = range(4)


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference: its place, such as ``SdpMaster.totalLost.type``, and its effect."""

    where: str
    step: VersionStep
    whom: tuple[str, ...]
    """Those concerned; empty for texts."""
    what: str


Change = tuple[str, str]
"""``less`` is allowed, or ``more``, ``both`` (another thing), or ``wider`` (more, which breaks readers); and a text."""
ChangeJudge = Callable[[Any, Any], Iterable[Change]]


def _by_order(none: float, *, greater_is: str) -> ChangeJudge:
    """Judge by direction; `none` stands for a missing value."""

    def judge(old: Any, new: Any) -> Iterator[Change]:
        before, after = (none if one is None else one for one in (old, new))
        yield "more" if (after > before) == (greater_is == "more") else "less", _from_to(old, new)

    return judge


def _members(old: Any, new: Any) -> Iterator[Change]:
    for change, word, first, second in (("less", "without", old, new), ("more", "also", new, old)):
        if found := [one for one in first if one not in second]:
            yield change, f"{word} {_said(found)}"


def _any_or_members(old: Any, new: Any) -> Iterable[Change]:
    return _members(old, new) if old and new else [("less" if new else "more", _from_to(old or "any", new or "any"))]


def _values(old: Any, new: Any) -> Iterable[Change]:
    """Judge the listed values of a schema; without one in common they are another thing."""
    is_other = old and new and not any(one in new for one in old)
    return [("both", _from_to(old, new))] if is_other else _any_or_members(old, new)


def _labels(old: tuple[str, ...], new: tuple[str, ...]) -> Iterator[Change]:
    """Judge the labels of an enum. A position is a value, so only a label at the end moves no other."""
    moved = [f"{value} {label}" for value, label in enumerate(old) if new[value : value + 1] != (label,)]
    yield ("less", f"no longer what they were: {_said(moved)}") if moved else ("more", f"also {_said(new[len(old) :])}")


def _types(old: Any, new: Any) -> Iterator[Change]:
    """Judge the types of a schema: a missing one allows all, and an integer is a number."""
    every = ("object", "array", "string", "number", "boolean", "null")
    known = (every if one is None else [one] if isinstance(one, str) else one for one in (old, new))
    before, after = ({*types, *(("integer",) if "number" in types else ())} for types in known)
    yield "less" if after < before else "wider" if after > before else "both", _from_to(old or "any", new or "any")


_JUDGES: Mapping[str, ChangeJudge] = {
    "text": lambda old, new: [("text", "text changed")],
    "key": lambda old, new: [],
    "changed": lambda old, new: [("both", _from_to(old, new))],
    "free": lambda old, new: [("more", _from_to(old, new))],
    "upper": _by_order(inf, greater_is="more"),
    "lower": _by_order(-inf, greater_is="less"),
    "greater": _by_order(0, greater_is="more"),
    "smaller": _by_order(inf, greater_is="less"),
    "members": _members,
    "encodings": lambda old, new: (("wider" if one == "more" else one, what) for one, what in _members(old, new)),
    "any": _any_or_members,
    "labels": _labels,
    "types": _types,
    "values": _values,
    "pattern": lambda old, new: [("more" if new is None else "less", _from_to(old, new))],
    "presence": lambda old, new: [("less" if new == "required" else "wider", _from_to(old, new))],
}
_PARTIES = {
    "clients": "Tango clients",
    "engineers": "site engineers",
    "alerts": "producers of alerts",
    "writers": "{writers}",
    "readers": "{readers}",
}
_ROWS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
FIELDS: Mapping[str, tuple[str, str, ChangeJudge]] = {
    f"{struct}.{name}": (less, more, _JUDGES[kind])
    for struct, less, more, kind, names in _ROWS["fields"]
    for name in names.split()
}
ENTRIES: Mapping[str, tuple[str, str]] = {name: (removed, added) for name, removed, added in _ROWS["entries"]}
_STRUCTS = {name.partition(".")[0] for name in FIELDS}
_HIDDEN = ("classes", "attributes", "commands", "queries", "properties", "presence")
"""Steps of the walk that a place leaves out."""
_PARTS = ("Schema.items", "Schema.additionalProperties")


def compare(old: Icd, new: Icd) -> list[Difference]:
    """Return all differences of two interfaces, breaking ones first."""
    found, both = list[Difference](), (_with_units(old), _with_units(new))
    for table in (rule.removeprefix("Icd.") for rule in ENTRIES if re.fullmatch(r"Icd\.\w+", rule)):
        before, after = (getattr(icd, table) for icd in both)
        for name in {**before, **after}:
            place = name if table in _HIDDEN else f"{table}.{name}"
            subject = " and ".join(_carriers(new, name) or _carriers(old, name) or [name])
            parties = {"writers": f"producers of {subject}", "readers": f"consumers of {subject}"}
            if table == "arguments":
                parties = {"writers": "Tango clients", "readers": "controllers"}
            for one in _walk(place, f"Icd.{table}.*", before.get(name), after.get(name)):
                found.append(replace(one, whom=tuple(whom.format(**parties) for whom in one.whom)))
    return sorted(found, key=lambda one: -one.step)


def _walk(where: str, rule: str, old: Any, new: Any) -> Iterator[Difference]:
    """Compare two values, and all that is in them, by a rule: the name of a row."""
    table = ENTRIES.get(rule.removesuffix(".*"))
    if old == new:
        return
    if isinstance(old, Struct) and isinstance(new, Struct) and type(old).__name__ in _STRUCTS:
        for name in old.__struct_fields__:
            place = where if name in _HIDDEN else f"{where}.{name}"
            yield from _walk(place, f"{type(old).__name__}.{name}", getattr(old, name), getattr(new, name))
    elif rule in ENTRIES:
        old, new = (one if isinstance(one, dict) else {each.name: each for each in one or ()} for one in (old, new))
        for name in {**old, **new}:
            yield from _walk(f"{where}.{name}", f"{rule}.*", old.get(name), new.get(name))
    elif table is not None and (old is None or new is None):
        is_required = isinstance(new, dict) and new.get("presence") == "required"
        row = ("writers", "") if is_required else table
        what = "removed" if new is None else "added, required" if is_required else "added"
        yield from _judged(where, *row, [("less" if new is None or is_required else "more", what)])
    elif rule in FIELDS:
        less, more, judge = FIELDS[rule]
        note = f", so {_ROWS['notes'][rule]}" if rule in _ROWS["notes"] else ""
        yield from _judged(where, less, more, ((change, what + note) for change, what in judge(old, new)))
    elif rule in _PARTS and not (old and new):
        is_narrower = old == {} or new is None
        yield from _judged(where, "writers", "readers", [("less", "narrowed") if is_narrower else ("more", "widened")])
    elif rule in _PARTS or table is not None:
        old, new = _normal(old), _normal(new)
        for name in sorted({*old, *new}):
            place = where if name in _HIDDEN else f"{where}.{name}"
            yield from _walk(place, f"Schema.{name}", old.get(name), new.get(name))
    else:
        what = f"{_from_to(old, new)}, which cannot be judged and so counts as breaking"
        yield from _judged(where, "writers", "readers", [("both", what)])


def _judged(where: str, less: str, more: str, changes: Iterable[Change]) -> Iterator[Difference]:
    for change, what in changes:
        words = {"less": less, "both": f"{less} {more}", "text": ""}.get(change, more).split()
        step = VersionStep.PATCH if not words else VersionStep.MINOR if change == "more" else VersionStep.MAJOR
        yield Difference(where, step, tuple(_PARTIES.get(one, one) for one in dict.fromkeys(words)), what)


def _normal(schema: Schema) -> Schema:
    """Return a schema as the table has it: each property knows whether it is required; None: nothing is allowed."""
    found, required = dict(schema), schema.get("required", ())
    found.pop("required", None)
    if "const" in found:
        found["enum"] = [found.pop("const")]
    for part in ("items", "additionalProperties"):
        one = found.get(part, True)
        found[part] = {} if one is True else None if one is False else one
    found["properties"] = {
        name: {**field, "presence": "required" if name in required else "optional"}
        for name, field in schema.get("properties", {}).items()
    }
    return found


def _with_units(icd: Icd) -> Icd:
    """Return the interface with the units that clients see: most follow from fields of messages."""
    classes = {
        name: structs.replace(one, attributes=tuple(structs.replace(a, unit=unit_of(icd, a)) for a in one.attributes))
        for name, one in icd.classes.items()
    }
    return structs.replace(icd, classes=classes)


def _carriers(icd: Icd, message: str) -> list[str]:
    """Return the topics that carry a message; of one in a header the topic's description says so."""
    return [
        name
        for name, topic in icd.topics.items()
        if message in (topic.message, *topic.also) or f"({message}.schema.json)" in topic.description
    ]


def compare_avro(old: Path, new: Path) -> Iterator[Difference]:
    """Compare ``messages/*.avsc`` below two folders: an Avro schema is known by its fingerprint, without texts."""
    before, after = _avro(old), _avro(new)
    known = [fingerprint for fingerprint, _ in after.values()]
    for name in sorted({*before, *after}):
        (was, text), (now, new_text) = before.get(name, ("", "")), after.get(name, ("", ""))
        where, whom = f"messages.{name}", (f"producers of {name}", f"consumers of {name}")
        if not was or not now:
            yield Difference(
                where, VersionStep.MAJOR if was else VersionStep.MINOR, whom, "removed" if was else "added"
            )
        elif was != now and was in known:
            what = "its fingerprint changed; packets by the former schema are read as well"
            yield Difference(where, VersionStep.MINOR, whom, what)
        elif was != now:
            yield Difference(
                where, VersionStep.MAJOR, whom, "its fingerprint changed, so packets by the other are refused"
            )
        elif text != new_text:
            yield Difference(where, VersionStep.PATCH, (), "text changed")


def _avro(folder: Path) -> dict[str, tuple[str, str]]:
    """Return each Avro schema without and with its texts."""
    paths = {path.stem: path for path in (folder / "messages").glob("*.avsc")}
    files = {name: path.read_text(encoding="utf-8") for name, path in paths.items()}
    return {
        name: (json.dumps(json.loads(text, object_pairs_hook=_without_texts)), text) for name, text in files.items()
    }


def _without_texts(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {key: value for key, value in pairs if key not in ("doc", "default")}


def judge_version(old: str, new: str, differences: Iterable[Difference]) -> tuple[bool, str]:
    """Return whether a version has made the step that the differences ask for, and a sentence that says so.

    Semantic versioning; below 1.0.0 a minor step is enough for a breaking difference.

    Raises
    ------
    IcdError
        A version that is not MAJOR.MINOR.PATCH.
    """
    before, after = _numbers(old), _numbers(new)
    at = next((at for at in range(3) if after[at] != before[at]), 0)
    made = VersionStep(3 - at) if after > before else VersionStep.NONE
    needed, why = max((one.step for one in differences), default=VersionStep.NONE), "semantic versioning"
    step = f"version {old} -> {new}: {f'a {made.name.lower()} step' if made else 'no step forward'}"
    if not needed:
        return True, f"no differences; {step}"
    if before[0] == 0 and needed is VersionStep.MAJOR:
        needed, why = VersionStep.MINOR, "below 1.0.0 a minor step is enough for a breaking difference"
    end = "which is enough" if made >= needed else "which is too small: raise version in schemas/icd/icd.toml"
    return made >= needed, f"needed: a {needed.name.lower()} step ({why}); {step}, {end}"


def _numbers(version: str) -> tuple[int, ...]:
    found = re.fullmatch(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)", version)
    if found is None:
        raise IcdError(f"icd.toml: version: expected MAJOR.MINOR.PATCH, got {version!r}")
    return tuple(map(int, found.groups()))


def _said(value: Any) -> str:
    if isinstance(value, list | tuple) and all(isinstance(one, str) for one in value):
        return ", ".join(value) or "none"
    return "none" if value is None else value if isinstance(value, str) and value else shown(value)


def _from_to(old: Any, new: Any) -> str:
    return f"{_said(old)} -> {_said(new)}"

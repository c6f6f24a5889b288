"""``sdp-facade icd diff``: the differences of two interfaces, the parties that they break, and the version they need.

The table ``icd_diff.toml`` has the effect of a change of every field and of every keyword of a JSON Schema.
"""

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import count
from math import inf
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec import Struct, structs

from facade.kernel.console import OUT, table, wide
from facade.kernel.errors import IcdError
from facade.kernel.icd.explain import shown
from facade.kernel.icd.fields import Schema
from facade.kernel.icd.load import load_unchecked
from facade.kernel.icd.model import Icd
from facade.kernel.icd.units import unit_of


class VersionStep(IntEnum):
    """Step of semantic versioning that a difference needs."""

    NONE, PATCH, MINOR, MAJOR = range(4)


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference, at a path such as ``SdpMaster.totalLost.type``, with the parties concerned (none for texts)."""

    where: str
    step: VersionStep
    whom: tuple[str, ...]
    what: str


ChangeJudge = Callable[[Any, Any], list[tuple[str, str]]]
"""Returns ``less`` (allowed), ``more``, ``both`` (a replacement), ``wider`` (more, which breaks readers) or ``text``,
each with the change in words."""


def _by_order(none: float, is_more: Callable[[Any, Any], bool]) -> ChangeJudge:
    def judge(old: Any, new: Any) -> list[tuple[str, str]]:
        before, after = (none if one is None else one for one in (old, new))
        return [("more" if is_more(before, after) else "less", _from_to(old, new))]

    return judge


def _members(old: Any, new: Any, more: str = "more") -> list[tuple[str, str]]:
    sides = (("less", "without", old, new), (more, "also", new, old))
    found = ((change, word, [one for one in first if one not in second]) for change, word, first, second in sides)
    return [(change, f"{word} {_said(some)}") for change, word, some in found if some]


def _choice(old: Any, new: Any) -> list[tuple[str, str]]:
    if not old or not new:
        return [("less" if new else "more", _from_to(old or "any", new or "any"))]
    return _members(old, new) if any(one in new for one in old) else [("both", _from_to(old, new))]


def _types(old: Any, new: Any) -> list[tuple[str, str]]:
    # A missing type allows all types, and an integer is a number.
    every = ("object", "array", "string", "number", "boolean", "null")
    known = (every if one is None else [one] if isinstance(one, str) else one for one in (old, new))
    before, after = ({*types, *(("integer",) if "number" in types else ())} for types in known)
    return [("less" if after < before else "wider" if after > before else "both", _from_to(old or "any", new or "any"))]


def _avro(old: Any, new: Any) -> list[tuple[str, str]]:
    (was, text, _), (now, new_text, known) = old, new
    if was == now:
        return [("text", "text changed")] if text != new_text else []
    kept, refused = "; packets by the former schema are read as well", ", so packets by the other are refused"
    return [("more" if was in known else "both", f"its fingerprint changed{kept if was in known else refused}")]


_JUDGES: Mapping[str, ChangeJudge] = {
    "text": lambda old, new: [("text", "text changed")],
    "key": lambda old, new: [],
    "changed": lambda old, new: [("both", _from_to(old, new))],
    "free": lambda old, new: [("more", _from_to(old, new))],
    "upper": _by_order(inf, lambda old, new: old < new),
    "lower": _by_order(-inf, lambda old, new: old > new),
    "smaller": _by_order(inf, lambda old, new: old > new),
    "members": _members,
    "encodings": lambda old, new: _members(old, new, "wider"),
    "choice": _choice,
    # A position is a value: only a label at the end moves no other.
    "labels": lambda old, new: _members([*map("{} {}".format, count(), old)], [*map("{} {}".format, count(), new)])[:1],
    "avro": _avro,
    "types": _types,
    "pattern": lambda old, new: [("more" if new is None else "less", _from_to(old, new))],
    "presence": lambda old, new: [("less" if new == "required" else "wider", _from_to(old, new))],
}
_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
FIELDS: Mapping[str, tuple[str, str, ChangeJudge]] = {
    f"{struct}.{name}": (less, more, _JUDGES[kind])
    for struct, less, more, kind, names in _TABLE["fields"]
    for name in names.split()
}
ENTRIES: Mapping[str, tuple[str, str]] = {name: (removed, added) for name, removed, added in _TABLE["entries"]}
_STRUCTS = {name.partition(".")[0] for name in FIELDS}
_HIDDEN = ("classes", "attributes", "commands", "queries", "properties", "presence", "all")
"""Names left out of a path."""


def compare(old: Icd, new: Icd) -> list[Difference]:
    """Return all differences of two interfaces, breaking ones first."""
    found, both = list[Difference](), (_with_units(old), _with_units(new))
    for kind in (rule.removeprefix("Icd.") for rule in ENTRIES if re.fullmatch(r"Icd\.\w+", rule)):
        before, after = (getattr(icd, kind) for icd in both)
        for name in {**before, **after}:
            subject = " and ".join(_carriers(new, name) or _carriers(old, name) or [name])
            parties = {"writers": f"producers of {subject}", "readers": f"consumers of {subject}"}
            if kind == "arguments":
                parties = {"writers": _TABLE["parties"]["clients"], "readers": "controllers"}
            parties = {**_TABLE["parties"], **parties}
            place = name if kind in _HIDDEN else f"{kind}.{name}"
            for one in _walk(place, f"Icd.{kind}.*", before.get(name), after.get(name)):
                found.append(replace(one, whom=tuple(parties.get(whom, whom) for whom in one.whom)))
    return sorted(found, key=lambda one: -one.step)


def _walk(where: str, rule: str, old: Any, new: Any) -> Iterator[Difference]:
    entry, less, more = ENTRIES.get(rule.removesuffix(".*")), "writers", "readers"
    if old == new:
        return
    if isinstance(old, Struct) and isinstance(new, Struct) and type(old).__name__ in _STRUCTS:
        rule, *both = type(old).__name__, structs.asdict(old), structs.asdict(new)
    elif rule in ENTRIES:
        named = (one if isinstance(one, dict) else {each.name: each for each in one or ()} for one in (old, new))
        rule, *both = f"{rule}.*", *named
    elif entry is not None and rule not in FIELDS and old is not None and new is not None:
        rule, *both = "Schema", _normal(old), _normal(new)
    else:
        if entry is not None and (old is None or new is None):
            is_required = isinstance(new, dict) and new.get("presence") == "required"
            less, more = ("writers", "") if is_required else entry
            what = "removed" if new is None else "added, required" if is_required else "added"
            changes = [("less" if new is None or is_required else "more", what)]
        elif rule in FIELDS:
            less, more, judge = FIELDS[rule]
            changes = [(change, what + _TABLE["notes"].get(rule, "")) for change, what in judge(old, new)]
        else:
            changes = [("both", f"{_from_to(old, new)}, which cannot be judged and so counts as breaking")]
        for change, what in changes:
            whom = {"less": less, "both": f"{less} {more}", "text": ""}.get(change, more).split()
            step = VersionStep.PATCH if not whom else VersionStep.MINOR if change == "more" else VersionStep.MAJOR
            yield Difference(where, step, tuple(dict.fromkeys(whom)), what)
        return
    for name in dict.fromkeys([*both[0], *both[1]]):
        place = where if name in _HIDDEN else f"{where}.{name}"
        below = rule if rule.endswith(".*") else f"{rule}.{name}"
        yield from _walk(place, below, *(one.get(name) for one in both))


def _normal(schema: Schema) -> Schema:
    """Return a schema in the form of the table: properties have a `presence`; a part that allows nothing is missing."""
    found, required = dict(schema), schema.get("required", ())
    found.pop("required", None)
    if "const" in found:
        found["enum"] = [found.pop("const")]
    for part in ("items", "additionalProperties"):
        one = found.get(part, True)
        found[part] = {} if one is False else {"all": {} if one is True else one}
    presence = {name: "required" if name in required else "optional" for name in schema.get("properties", {})}
    found["properties"] = {name: {**schema["properties"][name], "presence": one} for name, one in presence.items()}
    return found


def _with_units(icd: Icd) -> Icd:
    def with_units(one: Any) -> Any:
        return structs.replace(one, attributes=[structs.replace(a, unit=unit_of(icd, a)) for a in one.attributes])

    return structs.replace(icd, classes={name: with_units(one) for name, one in icd.classes.items()})


def _carriers(icd: Icd, message: str) -> list[str]:
    # A description names the message in a header.
    named = ((name, (one.message, *one.also), one.description) for name, one in icd.topics.items())
    return [name for name, all_, text in named if message in all_ or f"({message}.schema.json)" in text]


def judge_version(old: str, new: str, differences: Iterable[Difference]) -> tuple[bool, str]:
    """Return whether the version has changed enough for the differences, and a sentence about it."""
    for version in (old, new):
        if not re.fullmatch(r"(0|[1-9]\d*)(\.(0|[1-9]\d*)){2}", version):
            raise IcdError(f"icd.toml: version: expected MAJOR.MINOR.PATCH, got {version!r}")
    before, after = (tuple(map(int, version.split("."))) for version in (old, new))
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


def _said(value: Any) -> str:
    if isinstance(value, list | tuple) and all(isinstance(one, str) for one in value):
        value = ", ".join(value) or None
    return "none" if value is None else value if isinstance(value, str) and value else shown(value)


def _from_to(old: Any, new: Any) -> str:
    return f"{_said(old)} -> {_said(new)}"


def diff_command(
    old: Annotated[str, typer.Argument(help="Folder with icd/, messages/ and commands/, or a git revision.")],
    new: Annotated[str | None, typer.Argument(help="The same.", show_default="the shipped schemas")] = None,
) -> None:
    """List the differences of two interfaces with the parties that they break, and check the version in icd.toml.

    Exits with 1 if the version has made too small a step: a breaking difference needs a major one (below 1.0.0, a
    minor one), an addition a minor one, and a text a patch.

    Examples: sdp-facade icd diff HEAD, sdp-facade icd diff v0.2.0 v0.3.0, sdp-facade icd diff /old/schemas schemas
    """
    earlier, later = (load_unchecked(one) for one in (old, new))
    alike: dict[object, list[Difference]] = {}
    for one in (differences := compare(earlier, later)):
        # Differences that differ only in a number, such as those of all dishes, share a row.
        alike.setdefault((one.step, one.whom, one.what, re.sub(r"\d+", "#", one.where)), []).append(one)
    rows = [
        (
            f"{one.step.name.lower()}: {_TABLE['meanings'][one.step.name]}",
            ", ".join(one.whom),
            f"{one.where} (and {len(more)} like it)" if more else one.where,
            one.what,
        )
        for one, *more in alike.values()
    ]
    if rows:
        wide().print(table(("step", "for", "where", "what"), rows, title="Differences of the interface"))
    is_enough, sentence = judge_version(earlier.version, later.version, differences)
    OUT.print(sentence)
    if not is_enough:
        raise typer.Exit(1)

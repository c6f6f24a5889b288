"""Reads the files of the interface; what they say together is the business of `facade.icd.check`.

Nothing here raises for wrong content: every complaint becomes a `Finding`, so that one run shows
all files that need a hand.
"""

import json
import re
import tomllib
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from facade.icd.explain import explain
from facade.icd.finding import Finding
from facade.icd.model import Attribute, Condition, DeviceClass, Icd, Role, Topic

_SCHEMA_SUFFIX = ".schema.json"
_ARGUMENT_FILE = re.compile(r"(?P<family>[a-z]+)-(?P<version>\d+\.\d+)\.schema\.json")

File = TypeVar("File", bound=msgspec.Struct)


class _VersionFile(msgspec.Struct, forbid_unknown_fields=True):
    version: str


class _EnumsFile(msgspec.Struct, forbid_unknown_fields=True):
    enums: dict[str, tuple[str, ...]]


class _TopicsFile(msgspec.Struct, forbid_unknown_fields=True):
    topics: dict[str, Topic]
    roles: dict[str, Role] = msgspec.field(default_factory=dict)


class _ConditionsFile(msgspec.Struct, forbid_unknown_fields=True):
    conditions: dict[str, Condition]


_COMMON: dict[str, type[msgspec.Struct]] = {
    "icd.toml": _VersionFile,
    "enums.toml": _EnumsFile,
    "topics.toml": _TopicsFile,
    "conditions.toml": _ConditionsFile,
}
_ALARM_STATE = "AlarmState"
_RANGE = re.compile(r"([A-Z]+)(\d+)\.\.\1(\d+)")


def read(folder: Path) -> tuple[Icd | None, list[Finding]]:
    """Read ``icd/*.toml``, ``messages/*.schema.json`` and ``commands/*.schema.json`` below a folder.

    Returns
    -------
    The interface and no findings, or None and at least one.
    """
    findings: list[Finding] = []
    version = _table(folder / "icd" / "icd.toml", _VersionFile, findings)
    enums = _table(folder / "icd" / "enums.toml", _EnumsFile, findings)
    topics = _table(folder / "icd" / "topics.toml", _TopicsFile, findings)
    conditions = _table(folder / "icd" / "conditions.toml", _ConditionsFile, findings)
    classes = _classes(folder / "icd", findings)
    messages = _messages(folder / "messages", findings)
    arguments = _arguments(folder / "commands", findings)
    if findings or version is None or enums is None or topics is None or conditions is None:
        return None, findings
    return Icd(
        version=version.version,
        classes={name: _with_conditions(_with_each(one), conditions.conditions) for name, one in classes.items()},
        conditions=conditions.conditions,
        topics=topics.topics,
        roles=topics.roles,
        messages=messages,
        enums=enums.enums,
        arguments=arguments,
    ), []


def _classes(folder: Path, findings: list[Finding]) -> dict[str, DeviceClass]:
    found = {}
    for path in sorted(folder.glob("*.toml")):
        if path.name in _COMMON:
            continue
        device_class = _table(path, DeviceClass, findings)
        if device_class is None:
            continue
        if device_class.name != path.stem:
            what = f"expected the file's own name {path.stem!r}, got {device_class.name!r}"
            findings.append(Finding(path.name, "name", what))
        found[device_class.name] = device_class
    return found


def _with_each(device_class: DeviceClass) -> DeviceClass:
    """Put the attributes that an entry stands for in its place."""
    attributes: list[Attribute] = []
    for entry in device_class.attributes:
        attributes += [_of(entry, name) for text in entry.each for name in _range(text)] if entry.each else [entry]
    return msgspec.structs.replace(device_class, attributes=tuple(attributes))


def _of(entry: Attribute, one: str) -> Attribute:
    texts = {key: getattr(entry, key).replace("{}", one) for key in ("name", "label", "description")}
    return msgspec.structs.replace(entry, each=(), **texts)


def _range(text: str) -> list[str]:
    """Return the names of a range such as ``SKA001..SKA133``; any other text is one name."""
    found = _RANGE.fullmatch(text)
    if found is None:
        return [text]
    prefix, first, last = found.groups()
    return [f"{prefix}{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]


def _with_conditions(device_class: DeviceClass, conditions: dict[str, Condition]) -> DeviceClass:
    """Add the attributes of the alarm conditions to the class that shows them."""
    if not device_class.conditions:
        return device_class
    more = tuple(
        Attribute(name=name, type="DevEnum", enum=_ALARM_STATE, label=one.label, description=one.description)
        for name, one in conditions.items()
    )
    return msgspec.structs.replace(device_class, attributes=(*device_class.attributes, *more))


def _messages(folder: Path, findings: list[Finding]) -> dict[str, dict[str, Any]]:
    found = {}
    for path in sorted(folder.glob(f"*{_SCHEMA_SUFFIX}")):
        schema = _json(path, findings)
        if schema is not None:
            found[path.name.removesuffix(_SCHEMA_SUFFIX)] = schema
    return found


def _arguments(folder: Path, findings: list[Finding]) -> dict[str, dict[str, dict[str, Any]]]:
    """Read the schemas of command arguments, each family's versions in their order."""
    found: list[tuple[str, tuple[int, ...], str, dict[str, Any]]] = []
    for path in sorted(folder.glob(f"*{_SCHEMA_SUFFIX}")):
        name = _ARGUMENT_FILE.fullmatch(path.name)
        if name is None:
            what = f"expected a name of the form family-MAJOR.MINOR{_SCHEMA_SUFFIX}, got {path.name!r}"
            findings.append(Finding(path.name, "", what))
            continue
        schema = _json(path, findings)
        if schema is not None:
            version = name["version"]
            found.append((name["family"], tuple(map(int, version.split("."))), version, schema))
    arguments: dict[str, dict[str, dict[str, Any]]] = {}
    for family, _, version, schema in sorted(found, key=lambda one: one[:2]):
        arguments.setdefault(family, {})[version] = schema
    return arguments


def _table(path: Path, wanted: type[File], findings: list[Finding]) -> File | None:
    text = _text(path, findings)
    if text is None:
        return None
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        findings.append(Finding(path.name, "", f"expected TOML, got a syntax error: {error}"))
        return None
    try:
        return msgspec.convert(document, wanted)
    except msgspec.ValidationError as error:
        complaints = list(explain(document, wanted)) or [("", str(error))]
        findings.extend(Finding(path.name, key, what) for key, what in complaints)
        return None


def _json(path: Path, findings: list[Finding]) -> dict[str, Any] | None:
    text = _text(path, findings)
    if text is None:
        return None
    try:
        document = json.loads(text, object_pairs_hook=_without_repetition, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        findings.append(Finding(path.name, "", f"expected JSON, got: {error}"))
        return None
    if isinstance(document, dict):
        return document
    findings.append(Finding(path.name, "", f"expected a JSON object, got {type(document).__name__}"))
    return None


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a repeated key: JSON readers would drop the first one without a word."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {repeated!r} more than once in one object")
    return found


def _no_number(text: str) -> float:
    """Refuse NaN and Infinity, which Python reads and JSON does not have."""
    raise ValueError(f"{text}, which is no JSON number")


def _text(path: Path, findings: list[Finding]) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        findings.append(Finding(path.name, "", f"expected a file in {path.parent}, got none"))
    except UnicodeDecodeError as error:
        findings.append(Finding(path.name, "", f"expected UTF-8 text, got {error}"))
    return None

"""Checks the arguments of commands: JSON text, the schema of its ``interface``, and further rules.

A refusal names the key, the expected and the given value, so that a caller needs no log.
The schemas are the ICD's, ``schemas/commands``; several versions of each are valid side by side.

They are compiled (jsonschema-rs), so that an argument of a whole telescope's size takes a few milliseconds. The work is
bounded by the length of the text. For a long text only the first mistake is reported: finding all takes much longer.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from itertools import dropwhile, islice, pairwise
from operator import ne
from typing import Any

from jsonschema_rs import Draft202012Validator, Registry, ValidationError, ValidationErrorKind

from facade.kernel.errors import ArgumentError
from facade.kernel.icd.explain import shown
from facade.kernel.icd.load import load
from facade.kernel.icd.model import Icd

LONGEST = 1_000_000
"""Longest text of an argument [characters]."""
DEEPEST = 64
"""Deepest nesting of an argument [levels]."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SHOWN_NAME = 60

Path = tuple[str | int, ...]
"""Keys and indices from the top level down."""


def parse(text: str) -> dict[str, Any]:
    """Parse an argument."""
    if len(text) > LONGEST:
        raise ArgumentError(f"$: expected at most {LONGEST} characters, got {len(text)}")
    try:
        document = json.loads(text, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        what = f"{shown(text)} ({error})" if text.strip() else "an empty text"
        raise ArgumentError(f"$: expected a JSON object, got {what}") from None
    if not isinstance(document, dict):
        raise ArgumentError(f"$: expected a JSON object, got {shown(document)}")
    _refuse_unsafe(document, ())
    return document


def json_path(path: Path) -> str:
    """Return a path in the form of JSON paths: ``$.beams[0].function``."""
    return "$" + "".join(map(_step, path))


def _step(part: str | int) -> str:
    if isinstance(part, int):
        return f"[{part}]"
    if _NAME.fullmatch(part) and len(part) <= _SHOWN_NAME:
        return f".{part}"
    return f"[{part[:_SHOWN_NAME]!r}]"


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        repeated = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f"the key {shown(repeated)} is there more than once in one object")
    return found


def _refuse_unsafe(value: dict[str, Any] | list[Any], path: Path) -> None:
    # Python's parser allows it, but other programs could not read it, or would read it differently.
    if len(path) + bool(value) > DEEPEST:
        raise ArgumentError(f"$: expected at most {DEEPEST} levels, got more at {json_path(path[:4])}")
    if isinstance(value, dict) and (broken := next(filter(_SURROGATE.search, value), None)) is not None:
        raise ArgumentError(f"{json_path(path)}: expected keys of whole characters, got {shown(broken)}")
    for name, entry in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(entry, dict | list):
            if entry:
                _refuse_unsafe(entry, (*path, name))
        elif problem := _problem(entry):
            raise ArgumentError(f"{json_path((*path, name))}: {problem}")


def _problem(value: Any) -> str:
    if isinstance(value, str) and _SURROGATE.search(value):
        return f"expected text of whole characters, got {shown(value)}"
    if isinstance(value, float) and not math.isfinite(value):
        return f"expected a finite number, got {value}"
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return f"expected an integer of at most 64 bits, got {shown(value)}"
    return ""


Violation = tuple[Path, str]
"""Path, and a text with the expected and the given value."""
Document = Mapping[str, Any]


def violations(family: str, document: Document) -> Iterator[Violation]:
    """Find mistakes beyond the schema."""
    for rule in _RULES.get(family, ()):
        yield from rule(document)


def _ids_differ(document: Document) -> Iterator[Violation]:
    block = document.get("execution_block", {})
    for key, name in _IDS.items():
        yield from _repeated(block.get(key, []), name, ("execution_block", key))
    for index, channels in enumerate(block.get("channels", [])):
        path = ("execution_block", "channels", index, "spectral_windows")
        yield from _repeated(channels["spectral_windows"], "spectral_window_id", path)
    yield from _repeated(document.get("processing_blocks", []), "pb_id", ("processing_blocks",))


_IDS = {
    "beams": "beam_id",
    "scan_types": "scan_type_id",
    "channels": "channels_id",
    "polarisations": "polarisations_id",
    "fields": "field_id",
}


def _receptors_differ(document: Document) -> Iterator[Violation]:
    path = ("resources", "receptors")
    seen: dict[str, int] = {}
    for index, receptor in enumerate(document.get("resources", {}).get("receptors", [])):
        first = seen.setdefault(receptor, index)
        if first != index:
            yield (*path, index), f"expected a receptor of its own, got {shown(receptor)}, which [{first}] is already"


def _scan_types_derive_from_known(document: Document) -> Iterator[Violation]:
    scan_types = document.get("execution_block", {}).get("scan_types", [])
    known = {one["scan_type_id"] for one in scan_types}
    for index, one in enumerate(scan_types):
        base = one.get("derive_from")
        if base is not None and base not in known:
            path = ("execution_block", "scan_types", index, "derive_from")
            yield path, f"expected one of the scan types {_listed(known)}, got {shown(base)}"


def _scan_types_do_not_derive_in_circles(document: Document) -> Iterator[Violation]:
    yield from _circles(document.get("execution_block", {}).get("scan_types", []), ("execution_block", "scan_types"))


def _scan_types_use_known_beams(document: Document) -> Iterator[Violation]:
    block = document.get("execution_block", {})
    known = {beam["beam_id"] for beam in block.get("beams", [])}
    for index, one in enumerate(block.get("scan_types", [])):
        for beam in one.get("beams", {}):
            if beam not in known:
                path = ("execution_block", "scan_types", index, "beams", beam)
                yield path, f"expected one of the beams {_listed(known)}, got {shown(beam)}"


def _windows_are_ranges(document: Document) -> Iterator[Violation]:
    for index, channels in enumerate(document.get("execution_block", {}).get("channels", [])):
        for number, window in enumerate(channels["spectral_windows"]):
            low, high = window["freq_min"], window["freq_max"]
            if high < low:
                path = ("execution_block", "channels", index, "spectral_windows", number, "freq_max")
                yield path, f"expected number >= freq_min = {low}, got {high}"


def _dependencies_are_known(document: Document) -> Iterator[Violation]:
    blocks = document.get("processing_blocks", [])
    known = {one["pb_id"] for one in blocks}
    for index, one in enumerate(blocks):
        for number, dependency in enumerate(one.get("dependencies", [])):
            wanted = dependency["pb_id"]
            if wanted == one["pb_id"] or wanted not in known:
                path = ("processing_blocks", index, "dependencies", number, "pb_id")
                others = _listed(known - {one["pb_id"]})
                yield path, f"expected another processing block of these ({others}), got {shown(wanted)}"


def _new_scan_types_differ(document: Document) -> Iterator[Violation]:
    new = document.get("new_scan_types", [])
    yield from _repeated(new, "scan_type_id", ("new_scan_types",))
    yield from _circles(new, ("new_scan_types",))


def _maps_ascend(document: Document) -> Iterator[Violation]:
    # An entry applies up to the channel of the next one.
    for scan_type, beams in document.items():
        if scan_type in ("interface", "transaction_id"):
            continue
        for beam, entries in beams.items():
            for name, channels in entries.items():
                if isinstance(channels, list) and all(isinstance(entry, list) for entry in channels):
                    yield from _descents(channels, (scan_type, beam, name))


_RULES: Mapping[str, tuple[Callable[[Document], Iterator[Violation]], ...]] = {
    "assignres": (
        _ids_differ,
        _receptors_differ,
        _scan_types_derive_from_known,
        _scan_types_do_not_derive_in_circles,
        _scan_types_use_known_beams,
        _windows_are_ranges,
        _dependencies_are_known,
    ),
    "releaseres": (_receptors_differ,),
    "configure": (_new_scan_types_differ,),
    "recvaddrs": (_maps_ascend,),
}


def _repeated(entries: list[Document], key: str, path: Path) -> Iterator[Violation]:
    seen: dict[str, int] = {}
    for index, entry in enumerate(entries):
        first = seen.setdefault(entry[key], index)
        if first != index:
            what = f"expected an id of its own, got {shown(entry[key])}, which is that of {json_path((*path, first))}"
            yield (*path, index, key), what


def _circles(scan_types: list[Document], path: Path) -> Iterator[Violation]:
    base_of = {one["scan_type_id"]: one.get("derive_from") for one in scan_types}
    followed: set[str] = set()
    in_circle: set[str] = set()
    for start in base_of:
        trail: dict[str, None] = {}
        name: str | None = start
        while name is not None and name not in followed and name not in trail:
            trail[name] = None
            name = base_of.get(name)
        if name in trail:
            in_circle.update(dropwhile(partial(ne, name), trail))
        followed.update(trail)
    for index, one in enumerate(scan_types):
        base = one.get("derive_from")
        if base is not None and one["scan_type_id"] in in_circle:
            what = f"expected a scan type that does not derive from this one, got {shown(base)}"
            yield (*path, index, "derive_from"), what


def _descents(channels: list[list[Any]], path: Path) -> Iterator[Violation]:
    for index, (before, entry) in enumerate(pairwise(channels), start=1):
        if not entry[0] > before[0]:
            yield (*path, index), f"expected a channel > {before[0]}, which is that of the entry before, got {entry[0]}"


def _listed(names: set[str]) -> str:
    return shown(sorted(names))[1:-1] or "none"


_ADDRESS = "https://schema.skao.int/ska-sdp-{family}/{version}"
_MOST_VIOLATIONS = 3
"""Most mistakes in a refusal."""
_LONG = 10_000
"""Length of a text above which only the first mistake is reported [characters]."""
_LONGEST_ID = 200
"""Longest transaction id that the record of a command allows; SKA's schemas set no limit."""
_WHOLE = "urn:whole-number"
_WHOLE_NUMBER = {"$schema": "http://json-schema.org/draft-04/schema#", "id": _WHOLE, "type": "integer"}
"""An integer in the bus's sense, written without a fraction; drafts after the fourth also accept 1.0."""


@dataclass(frozen=True, slots=True)
class CheckedArgument:
    """A valid argument."""

    document: dict[str, Any]
    """The parsed text, with `interface` added if it was missing."""
    interface: str
    """Address of its schema."""
    transaction_id: str | None


def arguments_of(icd: Icd) -> "Arguments":
    """Return the argument schemas of an interface; those of the installed one are compiled once."""
    return _installed() if icd.arguments is load().arguments else Arguments(icd)


def mistakes(family: str, text: str) -> list[str]:
    """Return the mistakes of an argument by the installed interface; none: it may be sent."""
    try:
        _installed().check(family, text)
    except ArgumentError as error:
        return [str(error)]
    return []


@cache
def _installed() -> "Arguments":
    return Arguments(load())


class Arguments:
    """The argument schemas of the ICD, ready for use; may be used from several threads."""

    def __init__(self, icd: Icd) -> None:
        schemas = [_with_whole_numbers(schema) for versions in icd.arguments.values() for schema in versions.values()]
        self._schemas: dict[str, Any] = {schema["$id"]: schema for schema in schemas}
        registry = Registry([(_WHOLE, _WHOLE_NUMBER), *self._schemas.items()])
        compiled = {
            address: Draft202012Validator(schema, registry=registry, offline=True)
            for address, schema in self._schemas.items()
        }
        self._validators: dict[str, dict[str, Draft202012Validator]] = {
            family: {
                _ADDRESS.format(family=family, version=version): compiled[schema["$id"]]
                for version, schema in versions.items()
            }
            for family, versions in icd.arguments.items()
        }

    def check(self, family: str, text: str) -> CheckedArgument:
        """Read and check an argument.

        Parameters
        ----------
        family
            Family of its schemas, from the command in the ICD.
        text
            The argument of the caller. Without `interface` it counts as the oldest version.
        """
        document = parse(text)
        validators = self._validators[family]
        interface = document.setdefault("interface", next(iter(validators)))
        validator = validators.get(interface) if isinstance(interface, str) else None
        if validator is None:
            raise ArgumentError(f"$.interface: expected one of {', '.join(validators)}, got {shown(interface)}")
        if not validator.is_valid(document):
            _refuse(self._mistakes(validator, document, is_long=len(text) > _LONG))
        _refuse(violations(family, document))
        transaction_id = document.get("transaction_id")
        if transaction_id is not None and len(transaction_id) > _LONGEST_ID:
            got = f"{len(transaction_id)}: {shown(transaction_id)}"
            raise ArgumentError(f"$.transaction_id: expected at most {_LONGEST_ID} characters, got {got}")
        return CheckedArgument(document, interface, transaction_id)

    def _mistakes(
        self, validator: Draft202012Validator, document: dict[str, Any], *, is_long: bool
    ) -> Iterator[Violation]:
        if not is_long:
            for error in validator.iter_errors(document):
                yield from self._in_words(error)
            return
        try:
            validator.validate(document)
        except ValidationError as error:
            yield from self._in_words(error)
            yield (), f"in a text of more than {_LONG} characters only the first mistake is looked for"

    def _in_words(self, error: ValidationError) -> Iterator[Violation]:
        path, kind = tuple(error.instance_path), error.kind
        match kind:
            case ValidationErrorKind.Required():
                yield (*path, kind.property), "expected such a key, got none"
            case ValidationErrorKind.AdditionalProperties():
                known = ", ".join(self._beside(error.absolute_keyword_location)["properties"])
                for name in kind.unexpected:
                    yield (*path, name), f"expected one of the keys {known}, got an unknown key"
            case ValidationErrorKind.AnyOf():
                yield from self._of_choices(path, error.instance, kind.context)
            case _:
                yield path, f"expected {_expected(kind)}, got {shown(error.instance)}"

    def _beside(self, location: str | None) -> dict[str, Any]:
        """Return the part of a schema that has a keyword."""
        address, _, pointer = (location or "").partition("#/")
        part: dict[str, Any] = self._schemas[address]
        for name in pointer.split("/")[:-1]:
            part = part[int(name)] if isinstance(part, list) else part[name]
        return part

    def _of_choices(self, path: Path, got: Any, choices: list[list[ValidationError]]) -> Iterator[Violation]:
        """Return the mistakes of a value with several allowed forms."""
        kinds = [choice[0].kind for choice in choices]
        missing = [kind.property for kind in kinds if isinstance(kind, ValidationErrorKind.Required)]
        if len(missing) == len(kinds):
            keys = ", ".join(missing)
            yield path, f"expected at least one of the keys {keys}, got {shown(got)}"
            return
        is_other = [
            isinstance(kind, ValidationErrorKind.Type) and tuple(choice[0].instance_path) == path
            for kind, choice in zip(kinds, choices, strict=True)
        ]
        if all(is_other):
            yield path, f"expected {' or '.join(map(_expected, kinds))}, got {shown(got)}"
            return
        for choice in choices[is_other.index(False)]:
            yield from self._in_words(choice)


def _refuse(found: Iterable[Violation]) -> None:
    first = list(islice(found, _MOST_VIOLATIONS + 1))
    if first:
        lines = [f"{json_path(path)}: {what}" for path, what in first[:_MOST_VIOLATIONS]]
        raise ArgumentError(*lines, *(["and more"] if len(first) > _MOST_VIOLATIONS else []))


_KINDS = {
    "object": "an object",
    "array": "a list",
    "string": "text",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
}
_WORDS = {
    "pattern": "text of the form {}",
    "minimum": "a number >= {}",
    "maximum": "a number <= {}",
    "exclusiveMinimum": "a number > {}",
    "minLength": "text of at least {} character(s)",
    "minItems": "a list of at least {}",
    "maxItems": "a list of at most {}",
    "minProperties": "an object with at least {} key(s)",
}


def _expected(kind: ValidationErrorKind) -> str:
    match kind.name:
        case "type":
            return " or ".join(_KINDS[name] for name in kind.value)
        case "const":
            return shown(kind.value)
        case "enum":
            return f"one of {', '.join(map(repr, kind.value))}"
    return _WORDS[kind.name].format(kind.value)


def _with_whole_numbers(schema: Any) -> Any:
    """Return a schema whose integers are written without a fraction."""
    match schema:
        case {"type": "integer", **rest}:
            return {**rest, "$ref": _WHOLE}
        case dict():
            return {name: _with_whole_numbers(part) for name, part in schema.items()}
        case list():
            return [_with_whole_numbers(part) for part in schema]
    return schema

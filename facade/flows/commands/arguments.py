"""Checks the arguments of commands: JSON text, the schema that its ``interface`` names, and what no schema can say.

A refusal says which key, what was expected and what came, so that a caller need not look into any log.
The schemas are the ICD's, ``schemas/commands``; several versions of each are valid side by side.

They are compiled (jsonschema-rs), so that an argument of a whole telescope's size takes a few milliseconds. The work is
bounded by the length of the text. Of a long text the first mistake is named alone: to find all takes much longer.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from jsonschema_rs import Draft202012Validator, Registry, ValidationError, ValidationErrorKind

from facade.errors import ArgumentError
from facade.flows.commands.argument_rules import Violation, violations
from facade.flows.commands.argument_text import Path, json_path, parse
from facade.icd.explain import shown
from facade.icd.model import Icd

_ADDRESS = "https://schema.skao.int/ska-sdp-{family}/{version}"
_MOST_VIOLATIONS = 3
"""Things that a refusal names."""
_LONG = 10_000
"""Of a longer text, only the first mistake is named [characters]."""
_LONGEST_ID = 200
"""Characters of a transaction id that the record of a command may have; SKA's schemas set no limit."""
_WHOLE = "urn:whole-number"
_WHOLE_NUMBER = {"$schema": "http://json-schema.org/draft-04/schema#", "id": _WHOLE, "type": "integer"}
"""An integer as the whole bus understands it, written without a fraction; drafts after the fourth also take 1.0."""


@dataclass(frozen=True, slots=True)
class CheckedArgument:
    """An argument that a controller may be given."""

    document: dict[str, Any]
    """What the text says, with `interface` added where it names none."""
    interface: str
    """Address of its schema."""
    transaction_id: str | None


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
            Family of its schemas: that of the command in the ICD.
        text
            The argument as the caller gave it. One without `interface` is taken for the oldest version.

        Raises
        ------
        ArgumentError
            Says which key (as a JSON path), what was expected and what came.
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
        """Find what a schema does not allow."""
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
        """Say where it is, what was expected and what came."""
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
        """Return the part of a schema in which a keyword stands."""
        address, _, pointer = (location or "").partition("#/")
        part: dict[str, Any] = self._schemas[address]
        for name in pointer.split("/")[:-1]:
            part = part[int(name)] if isinstance(part, list) else part[name]
        return part

    def _of_choices(self, path: Path, got: Any, choices: list[list[ValidationError]]) -> Iterator[Violation]:
        """Say what a value lacks of which one of several forms was expected."""
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
    """Refuse an argument with violations; the listing ends at the longest text of a refusal."""
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
    """Return what a keyword expects."""
    match kind.name:
        case "type":
            return " or ".join(_KINDS[name] for name in kind.value)
        case "const":
            return shown(kind.value)
        case "enum":
            return f"one of {', '.join(map(repr, kind.value))}"
    return _WORDS[kind.name].format(kind.value)


def _with_whole_numbers(schema: Any) -> Any:
    """Return a schema of which integers are written without a fraction."""
    match schema:
        case {"type": "integer", **rest}:
            return {**rest, "$ref": _WHOLE}
        case dict():
            return {name: _with_whole_numbers(part) for name, part in schema.items()}
        case list():
            return [_with_whole_numbers(part) for part in schema]
    return schema

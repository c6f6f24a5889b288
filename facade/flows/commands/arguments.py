"""Checks the arguments of commands: JSON text, the schema that its ``interface`` names, and what no schema can say.

A refusal says which key, what was expected and what came, so that a caller need not look into any log.
The schemas are the ICD's, ``schemas/commands``; several versions of each are valid side by side.
"""

import re
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import extend
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from facade.errors import ArgumentError
from facade.flows.commands.argument_rules import Complaint, complaints
from facade.flows.commands.argument_text import json_path, longest_list, parse
from facade.icd.explain import shown
from facade.icd.model import Icd

_ADDRESS = "https://schema.skao.int/ska-sdp-{family}/{version}"
_MOST_COMPLAINTS = 3
"""Things that a refusal names."""
_MOST_CHECKS = 20_000
"""Checks of a schema's keywords that one argument may take, so that a caller has an answer within 0.5 s."""
_LONGEST_ID = 200
"""Characters of a transaction id that the record of a command may have; SKA's schemas set no limit."""


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
        schemas = [schema for versions in icd.arguments.values() for schema in versions.values()]
        registry: Registry[Any] = Registry().with_resources(
            (schema["$id"], DRAFT202012.create_resource(schema)) for schema in schemas
        )
        self._validators: dict[str, dict[str, Validator]] = {
            family: {
                _ADDRESS.format(family=family, version=version): _Strict(schema, registry=registry)
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
        _checks.left = _MOST_CHECKS
        try:
            _refuse((tuple(error.absolute_path), _in_words(error)) for error in validator.iter_errors(document))
        except _TooMuchToCheckError:
            path, length = longest_list(document)
            what = f"expected few enough values for {_MOST_CHECKS} checks, got more; the longest list, with {length}"
            raise ArgumentError(f"$: {what} entries, is {json_path(path)}") from None
        _refuse(complaints(family, document))
        transaction_id = document.get("transaction_id")
        if transaction_id is not None and len(transaction_id) > _LONGEST_ID:
            got = f"{len(transaction_id)}: {shown(transaction_id)}"
            raise ArgumentError(f"$.transaction_id: expected at most {_LONGEST_ID} characters, got {got}")
        return CheckedArgument(document, interface, transaction_id)


def _refuse(found: Iterable[Complaint]) -> None:
    """Refuse an argument that somebody complains about; a long list of complaints is not made to its end."""
    first = list(islice(found, _MOST_COMPLAINTS + 1))
    if first:
        lines = [f"{json_path(path)}: {what}" for path, what in first[:_MOST_COMPLAINTS]]
        raise ArgumentError("; ".join(lines) + ("; and more" if len(first) > _MOST_COMPLAINTS else ""))


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


def _in_words(error: ValidationError) -> str:
    """Say what was expected and what came."""
    keyword, got = str(error.validator), error.instance
    wanted: Any = error.validator_value
    if keyword in _OWN:
        return error.message
    match keyword:
        case "type":
            expected = _KINDS[str(wanted)]
        case "const":
            expected = shown(wanted)
        case "enum":
            expected = f"one of {', '.join(map(repr, wanted))}"
        case "anyOf" if all(choice.keys() == {"required"} for choice in wanted):
            expected = f"at least one of the keys {', '.join(key for choice in wanted for key in choice['required'])}"
        case "anyOf":
            expected = " or ".join(_KINDS.get(choice.get("type", "array"), "") for choice in wanted)
        case _:
            expected = _WORDS[keyword].format(wanted)
    return f"expected {expected}, got {shown(got)}"


def _required(validator: Any, names: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    """Complain about each missing key at its own place."""
    if validator.is_type(instance, "object"):
        for name in names:
            if name not in instance:
                yield ValidationError("expected such a key, got none", path=(name,))


def _additional_properties(validator: Any, rest: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    """Complain about each unknown key at its own place."""
    if rest is not False:
        yield from _PLAIN["additionalProperties"](validator, rest, instance, schema) or ()
    elif validator.is_type(instance, "object"):
        known = schema.get("properties", {})
        for name in instance:
            if name not in known:
                what = f"expected one of the keys {', '.join(known)}, got an unknown key"
                yield ValidationError(what, path=(name,))


def _pattern(validator: Any, pattern: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    """Match as JSON Schema does: ``$`` is the end of the text, not a line break before it."""
    if validator.is_type(instance, "string") and not re.search(re.sub(r"\$$", r"\\Z", pattern), instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _is_integer(_checker: object, value: object) -> bool:
    """Return whether a value is an integer as the whole bus understands it: written without a fraction."""
    return isinstance(value, int) and not isinstance(value, bool)


class _TooMuchToCheckError(Exception):
    """The checks that were granted are used up."""


_checks = threading.local()
"""How many are left of those that the argument under way may take."""


def _counted(keyword: Any) -> Any:
    """Return a keyword's check that counts how often it is made."""

    def check(validator: Any, wanted: Any, instance: Any, schema: Any) -> Any:
        _checks.left -= 1
        if _checks.left < 0:
            raise _TooMuchToCheckError
        return keyword(validator, wanted, instance, schema)

    return check


_OWN = {"required": _required, "additionalProperties": _additional_properties}
_PLAIN = Draft202012Validator.VALIDATORS
_extend: Any = extend  # its type hints are incomplete
_Strict = _extend(
    Draft202012Validator,
    validators={name: _counted(check) for name, check in {**_PLAIN, **_OWN, "pattern": _pattern}.items()},
    type_checker=Draft202012Validator.TYPE_CHECKER.redefine("integer", _is_integer),
)

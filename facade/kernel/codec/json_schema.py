"""Compiles a message's JSON Schema to a msgspec struct, which decodes and validates in one pass.

Only a subset of JSON Schema is supported; other keywords are refused, never ignored: an ignored keyword would let
records pass that the interface forbids.

An optional property that is absent has the schema's ``default`` in the struct, or None, and is left out again by
``msgspec.json.encode``; a ``null`` in the JSON is refused, as by the schema.
"""

import re
from keyword import iskeyword
from typing import Annotated, Any, Literal

import msgspec
from msgspec.structs import fields

from facade.kernel.errors import IcdError

PART = "x-part"
"""Keyword of a message: ``kernel`` if the frame of every flow writes or reads it."""
_ANNOTATIONS = frozenset(
    ("$schema", "$id", "title", "description", "default", "examples", "x-unit", "x-example-key", "x-aliases", PART)
)
_KEYWORDS: dict[str, frozenset[str]] = {
    "object": frozenset({"properties", "required", "additionalProperties", "propertyNames"}),
    "array": frozenset({"items", "minItems", "maxItems"}),
    "string": frozenset({"minLength", "maxLength", "pattern"}),
    "integer": frozenset({"minimum", "maximum"}),
    "number": frozenset({"minimum", "maximum"}),
    "boolean": frozenset(),
}
_ANYTHING = ["object", "array", "string", "number", "boolean"]
"""All types except null; a schema without a type is refused, as it may be a slip."""
_OBJECT_OR_NULL = ["object", "null"]
_WHOLE_OR_NOT = ["integer", "number"]
"""A number; without a fraction it stays an integer, which is exact."""
_WHOLE_NAMES = {"pattern": "^(0|-0|[1-9][0-9]{0,14})(?![\\s\\S])"}
"""Pattern of the names of an object that are natural numbers; they become the keys."""
_LONGEST_TUPLE = 4
"""Longest array of a fixed length that becomes a tuple."""
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_INT64 = 2**63

Schema = dict[str, Any]


def compile_message(name: str, schema: Schema) -> type[msgspec.Struct]:
    """Make the struct type of a message.

    Parameters
    ----------
    name
        Name of the message: the schema's file name without ``.schema.json``.
    schema
        The schema of an object with properties.

    Raises
    ------
    IcdError
        The schema is outside the subset; the message names file and path.
    """
    place = _Place(f"{name}.schema.json", (), _camel_case(name))
    compiled = _compile(schema, place)
    if not (isinstance(compiled, type) and issubclass(compiled, msgspec.Struct)):
        raise place.error("expected an object with properties")
    return compiled


def compile_tagged(name: str, schema: Schema) -> type[msgspec.Struct]:
    """Make the struct type of one version of a message; `BatchDecoder` identifies it by its ``schema``."""
    struct = compile_message(name, schema)
    return msgspec.defstruct(
        struct.__name__,
        [(one.name, one.type) for one in fields(struct) if one.name != "schema"],
        tag_field="schema",
        tag=schema["properties"]["schema"]["const"],
        gc=False,
    )


class _Place:
    """Position in a schema, for messages and for the names of nested structs."""

    def __init__(self, file: str, path: tuple[str, ...], type_name: str) -> None:
        self.file = file
        self.path = path
        self.type_name = type_name

    def below(self, *path: str) -> "_Place":
        """Return the position of a part; its struct is named after the last step."""
        return _Place(self.file, (*self.path, *path), self.type_name + _camel_case(path[-1]))

    def error(self, what: str) -> IcdError:
        return IcdError(": ".join(part for part in (self.file, ".".join(self.path), what) if part))


def _compile(schema: object, place: _Place) -> Any:
    if not isinstance(schema, dict):
        raise place.error(f"expected a schema, got {schema!r:.80}")
    for choice in ("const", "enum"):
        if choice in schema:
            return _literal(schema, choice, place)
    kind = schema.get("type")
    if kind == _ANYTHING:
        _refuse_unknown(schema, {"type"}, place)
        return dict[str, Any] | list[Any] | str | int | float | bool
    if kind == _WHOLE_OR_NOT:
        _refuse_unknown(schema, {"type"}, place)
        return int | float
    if kind == _OBJECT_OR_NULL:
        return _compile({**schema, "type": "object"}, place) | None
    if not isinstance(kind, str) or kind not in _KEYWORDS:
        raise place.error(f"type: expected one of {sorted(_KEYWORDS)}, got {kind!r:.80}")
    _refuse_unknown(schema, _KEYWORDS[kind] | {"type"}, place)
    match kind:
        case "object":
            return _object(schema, place)
        case "array":
            return _array(schema, place)
        case "string":
            return _string(schema, place)
        case "boolean":
            return bool
    return _number(schema, place, int if kind == "integer" else float)


def _refuse_unknown(schema: Schema, known: frozenset[str] | set[str], place: _Place) -> None:
    for keyword in schema:
        if keyword not in known and keyword not in _ANNOTATIONS:
            raise place.error(f"{keyword}: expected one of {sorted(known)}, got an unsupported keyword")


def _literal(schema: Schema, choice: str, place: _Place) -> Any:
    _refuse_unknown(schema, {choice, "type"}, place)
    values = [schema["const"]] if choice == "const" else schema["enum"]
    texts = isinstance(values, list) and values and all(isinstance(value, str) for value in values)
    if not texts or len(set(values)) < len(values) or schema.get("type", "string") != "string":
        raise place.error(f"{choice}: expected different strings, got {values!r:.80}")
    return Literal[tuple(values)]


def _number(schema: Schema, place: _Place, base: type[int] | type[float]) -> Any:
    bounds: dict[str, Any] = {}
    for keyword, bound in (("minimum", "ge"), ("maximum", "le")):
        if keyword not in schema:
            continue
        value = schema[keyword]
        fits = isinstance(value, int if base is int else int | float) and not isinstance(value, bool)
        if not fits or not -_INT64 <= value < _INT64:
            raise place.error(f"{keyword}: expected {base.__name__} of at most 63 bits, got {value!r:.80}")
        bounds[bound] = value
    if schema.get("x-unit") == "us":
        bounds["title"] = "time"  # as of `facade.kernel.numbers.Instant`
    return Annotated[base, msgspec.Meta(**bounds)] if bounds else base


def _string(schema: Schema, place: _Place) -> Any:
    limits: dict[str, Any] = _sizes(schema, place, ("minLength", "maxLength"))
    if "pattern" in schema:
        try:
            re.compile(schema["pattern"])
        except (re.error, TypeError) as error:
            raise place.error(f"pattern: expected a regular expression, got {error}") from None
        limits["pattern"] = schema["pattern"]
    return Annotated[str, msgspec.Meta(**limits)] if limits else str


def _array(schema: Schema, place: _Place) -> Any:
    item = _compile(schema.get("items"), place.below("items"))
    limits: dict[str, Any] = _sizes(schema, place, ("minItems", "maxItems"))
    length = limits.get("max_length", 0)
    if 0 < length <= _LONGEST_TUPLE and limits.get("min_length") == length:
        return tuple.__class_getitem__((item,) * length)
    # A generic alias of a run-time type, which mypy cannot express.
    found: Any = list.__class_getitem__(item)
    return Annotated[found, msgspec.Meta(**limits)] if limits else found


def _sizes(schema: Schema, place: _Place, keywords: tuple[str, str]) -> dict[str, Any]:
    sizes: dict[str, Any] = {}
    for keyword, limit in zip(keywords, ("min_length", "max_length"), strict=True):
        if keyword in schema:
            value = schema[keyword]
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _INT64:
                raise place.error(f"{keyword}: expected integer >= 0, got {value!r:.80}")
            sizes[limit] = value
    return sizes


def _object(schema: Schema, place: _Place) -> Any:
    rest = schema.get("additionalProperties", True)
    if "properties" in schema:
        if "propertyNames" in schema:
            raise place.error("propertyNames: expected none beside properties")
        if rest is not False:
            raise place.error(f"additionalProperties: expected false beside properties, got {rest!r:.80}")
        return _struct(schema, place)
    if "required" in schema:
        raise place.error("required: expected none without properties")
    if schema.get("propertyNames", _WHOLE_NAMES) != _WHOLE_NAMES:
        raise place.error(f"propertyNames: expected {_WHOLE_NAMES}, got {schema['propertyNames']!r:.80}")
    name = Annotated[int, msgspec.Meta(ge=0, lt=10**15)] if "propertyNames" in schema else str
    value = Any if rest is True else _compile(rest, place.below("additionalProperties"))
    return dict.__class_getitem__((name, value))


def _struct(schema: Schema, place: _Place) -> type[msgspec.Struct]:
    properties, required = schema["properties"], schema.get("required", [])
    if not isinstance(properties, dict):
        raise place.error(f"properties: expected an object, got {properties!r:.80}")
    if not isinstance(required, list) or any(name not in properties for name in required):
        raise place.error(f"required: expected names of properties, got {required!r:.80}")
    fields: list[Any] = []
    for name, part in properties.items():
        if not _NAME.fullmatch(name) or iskeyword(name):
            raise place.error(f"properties.{name}: expected a lower_case name that Python can use")
        wanted = _compile(part, place.below("properties", name))
        if name not in required and part.get("type") == _OBJECT_OR_NULL:
            raise place.error(
                f"properties.{name}.type: expected no null for an optional property, which None leaves out"
            )
        # The default is not validated, so None need not be in the type, and null stays refused.
        fields.append((name, wanted) if name in required else (name, wanted, _default(part, wanted, place.below(name))))
    # Messages are trees without cycles: the garbage collector need not track millions of them.
    return msgspec.defstruct(
        _camel_case(schema["title"]) if place.path and "title" in schema else place.type_name,
        fields,
        module=__name__,
        kw_only=True,
        omit_defaults=True,
        gc=False,
    )


def _default(schema: Schema, wanted: Any, place: _Place) -> Any:
    try:
        return msgspec.convert(schema["default"], wanted) if "default" in schema else None
    except msgspec.ValidationError as error:
        raise place.error(f"default: {error}") from None


def _camel_case(name: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in re.split(r"[^A-Za-z0-9]+", name))

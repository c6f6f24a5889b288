"""The reference pages: devices, topics, messages, alerts and enumerations, from the ICD.

The templates in ``facade/tools/exports/pages`` have the texts of the pages. Repeated entries appear once. An attribute
that is the same in an earlier class is a link to its page; the attributes of a stream's account are a table of streams
and one entry for each figure; the attributes of alarm conditions are links to the runbook.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from facade.admin.rights import as_rows
from facade.kernel.icd.expand import account_attribute
from facade.kernel.icd.fields import Schema, properties, split_version
from facade.kernel.icd.model import STREAM, Attribute, DeviceClass, Icd, Query
from facade.kernel.icd.topic_model import Figure, Topic
from facade.kernel.icd.units import unit_of
from facade.kernel.instances import FAMILIES
from facade.sdp import words
from facade.sdp.batches import FRAME, HEADER
from facade.sdp.words import AttributeFamily, families
from facade.tools.exports import arguments
from facade.tools.exports.asyncapi import ends, message_names
from facade.tools.exports.markdown import code, escaped, link, row, tidy

_FOLDER: Final = "docs/reference"
_PAGES: Final = ("index", "topics", "rights", "authority", "messages", "executors", "alerts", "enums")
_OWN_TOOL = "operator-tool"
"""Role of the commands of `sdp-facade`: no team writes such a program."""
_WIDTH = 118
_EXACT = 2**53 - 1
"""Greatest integer of a message: exact in each JSON reader."""
_LONGEST = 200
"""Length limit of most texts; the page has it once."""
_BYTES = ((1_048_576, "MiB"), (1024, "KiB"))

Entries = Mapping[str, Mapping[str, AttributeFamily | Query]]
"""Attributes and commands of each class, by name; all pages share them."""


def export(icd: Icd) -> Mapping[str, str]:
    """Return all reference pages; see `facade.tools.exports.files`."""
    environment = Environment(  # noqa: S701 - it writes Markdown
        loader=PackageLoader(__name__.rpartition(".")[0], "pages"), undefined=StrictUndefined
    )
    entries = {name: _entries(one) for name, one in icd.classes.items()}
    environment.filters |= {"text": escaped, "code": code, "limited": _limited}
    environment.globals |= {
        "icd": icd, "code": code, "link": link, "row": row, "instance_families": FAMILIES, "rights": as_rows(icd),
        "duration": words.duration_in_words, "account_attribute": account_attribute, "message_names": message_names,
        "same_stream": STREAM, "size": _size, "fields": _fields, "json_lines": _json_lines, "purposes": _purposes,
        "messages_of": _of, "account_streams": _account_streams, "figure_texts": _figure_texts,
        "figure_family": _figure_family, "writers_of": _writers_of, "unit": lambda one: unit_of(icd, one),
        "homes": lambda device, found: _homes(icd, entries, device, found),
        "same_elsewhere": lambda device, found: _elsewhere(icd, entries, device, found),
        "enum_users": lambda name: [*_enum_users(icd, entries, name)],
        "first_with_commands": next(name for name, one in icd.classes.items() if one.commands),
        "argument_example": lambda command: _argument_example(icd, command.argument),
        "messages_for": lambda side: [name for name in icd.messages if _sides(icd).get(name, "") == side],
        "topics_with": lambda name: [topic for topic, one in icd.topics.items() if name in _of(one)],
        "current_of": lambda name: split_version(name)[0], "place_of": lambda name: _place_of(icd, name),
        **{name: getattr(words, name) for name in dir(words) if name.endswith("_in_words") or name == "ranges"},
    }  # fmt: skip
    pages = {name: environment.get_template(f"{name}.j2").render() for name in _PAGES}
    device = environment.get_template("device.j2")
    for name, one in icd.classes.items():
        own = [
            entry
            for entry in entries[name].values()
            if isinstance(entry, AttributeFamily) and entry.first.account is None and entry.name not in icd.conditions
        ]
        pages[name] = device.render(device=one, own=own, accounts=_accounts(one))
    return {f"{_FOLDER}/{name}.md": tidy(content) for name, content in pages.items()}


# Devices


def _entries(device_class: DeviceClass) -> Mapping[str, AttributeFamily | Query]:
    found: list[AttributeFamily | Query] = [*families(device_class.attributes), *device_class.queries]
    return {one.name: one for one in found}


def _homes(
    icd: Icd, entries: Entries, device_class: DeviceClass, found: Sequence[AttributeFamily | Query]
) -> dict[str, DeviceClass]:
    """Return the first class with an equal attribute or command, whose page has the entry."""
    homes = {one.name: device_class for one in found}
    for other in takewhile(lambda other: other is not device_class, icd.classes.values()):
        same = entries[other.name]
        homes |= {one.name: other for one in found if homes[one.name] is device_class and same.get(one.name) == one}
    return homes


def _elsewhere(
    icd: Icd, entries: Entries, device_class: DeviceClass, found: Sequence[AttributeFamily | Query]
) -> Iterator[tuple[str, list[str]]]:
    """Name the attributes or commands whose entries are on the pages of other classes, by class."""
    homes = _homes(icd, entries, device_class, found)
    for other in icd.classes.values():
        names = [one.name for one in found if other is not device_class and homes[one.name] is other]
        if names:
            yield other.name, names


def _accounts(device_class: DeviceClass) -> dict[Figure, dict[str, Attribute]]:
    """Return the attributes of accounts, by figure and stream."""
    found: dict[Figure, dict[str, Attribute]] = {}
    for one in device_class.attributes:
        if one.account is not None:
            found.setdefault(one.account.figure, {})[one.account.stream] = one
    return found


def _account_streams(accounts: Mapping[Figure, Mapping[str, Attribute]]) -> list[str]:
    return list(dict.fromkeys(stream for those in accounts.values() for stream in those))


def _figure_texts(those: Mapping[str, Attribute]) -> tuple[str, list[tuple[str, list[str]]]]:
    """Return what a figure is, and in which words it differs for some streams."""
    texts: dict[str, list[str]] = {}
    for stream, one in those.items():
        texts.setdefault(one.description.partition("; stream ")[0], []).append(stream)
    what, *differs = next(iter(texts)).split(": ") if len(texts) > 1 else list(texts)
    return what, [(text.removeprefix(f"{what}: "), of) for text, of in texts.items()] if differs else []


def _limited(those: Mapping[str, Attribute]) -> list[str]:
    return [stream for stream, one in those.items() if one.limits is not None]


def _figure_family(those: Mapping[str, Attribute]) -> AttributeFamily:
    first = next(iter(those.values()))
    return AttributeFamily("", first.label.partition(": ")[2], "", first, ())


def _argument_example(icd: Icd, argument: str | None) -> str | None:
    found = arguments.example(icd, argument) if argument else None
    return None if found is None else arguments.as_text(found)


def _enum_users(icd: Icd, entries: Entries, name: str) -> Iterator[str]:
    """Return links to the attributes with the values of an enumeration."""
    for device_class in icd.classes.values():
        for one in entries[device_class.name].values():
            if isinstance(one, AttributeFamily) and one.first.enum == name and one.name not in icd.conditions:
                home = _homes(icd, entries, device_class, [one])[one.name].name
                yield link(code(f"{device_class.name}.{one.name}"), f"{home}.md", one.name)


# Topics and messages


def _writers_of(name: str, topic: Topic, kind: str) -> list[str]:
    """Return the roles that write a kind of record to a topic."""
    return [
        one for one in topic.writers if kind in (topic.operation(one, "send").messages or message_names(name, topic))
    ]


def _purposes(topic: Topic, writers: Sequence[str]) -> str:
    return " ".join(sorted({topic.operation(one, "send").summary for one in writers}))


def _sides(icd: Icd) -> dict[str, str]:
    """Return the use of each message in SDP's programs; written ones come last, as they are often read too."""
    found: dict[str, set[str]] = {"receive": set(), "send": set()}
    examples = {name for name, schema in icd.messages.items() if "examples" in schema}
    for topic, one in icd.topics.items():
        headers = [name for _, name in _headers(icd, topic)]
        for role, side in ends(one):
            if icd.roles[role].side == "SDP":
                names = [*(one.operation(role, side).messages or message_names(topic, one)), *headers]
                found[side].update(name for name in names if role != _OWN_TOOL or name in examples)
    return {name: what for what, its in found.items() for name in its}


def _headers(icd: Icd, topic: str) -> Iterator[tuple[str, str]]:
    """Return the headers that describe the bytes of a topic's records, with the message of each."""
    if (header := icd.topics[topic].header) is not None:
        yield header.name, header.message
    if "arrow" in icd.topics[topic].encodings:
        yield from ((HEADER, "batch"), (FRAME, "batch-frame"))


def _place_of(icd: Icd, name: str) -> str:
    """Return where a message is in a record; empty text: on no topic."""
    for topic, one in icd.topics.items():
        on = link(code(topic), "topics.md", topic)
        if name in _of(one):
            return f"A record on {on}"
        for header, message in _headers(icd, topic):
            if name == message:
                return f"The header {code(header)} of a record on {on}"
    return ""


def _json_lines(example: Mapping[str, Any]) -> str:
    """Return an object as JSON, with as many fields on a line as fit."""
    lines, line = list[str](), "{"
    for name, value in example.items():
        field = f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}, "
        if len(line) + len(field) > _WIDTH and line.strip("{ "):
            lines.append(line.rstrip())
            line = " "
        line += field
    return "\n".join([*lines, line.removesuffix(", ") + "}"])


def _of(topic: Topic) -> tuple[str, ...]:
    return ((topic.message,) if topic.message else ()) + topic.also


def _size(size: int) -> str:
    for length, unit in _BYTES:
        if size % length == 0:
            return f"{size // length} {unit}"
    return f"{size:,} B"


def _fields(schema: Schema, depth: int = 0) -> str:
    """Return the fields of a message as a list, with those of their parts below them."""
    required = schema.get("required", [])
    return "\n".join(
        _field(code(name), field, depth, name in required)
        for name, field in properties(schema).items()
        if "const" not in field  # the introduction of the page has it
    )


def _field(name: str, field: Schema, depth: int, required: bool) -> str:
    facts = ", ".join(filter(None, (_kind(field), "" if required else "optional", _range(field))))
    description = escaped(str(field.get("description", "")))
    lines = [f"{'    ' * depth}- {name} ({facts}): {description}".removesuffix(": "), _fields(field, depth + 1)]
    for keyword, what in (("items", "each entry"), ("additionalProperties", "each value")):
        if isinstance(field.get(keyword), dict):
            lines.append(_field(what, field[keyword], depth + 1, True))
    return "\n".join(lines)


def _kind(field: Schema) -> str:
    if "enum" in field:
        return "one of " + " ".join(code(str(one)) if one != "" else "(empty)" for one in field["enum"])
    kind = field.get("type", "any")
    words = " or ".join(kind) if isinstance(kind, list) else str(kind)
    return f"{words} [{field['x-unit']}]".replace("[", "\\[").replace("]", "\\]") if field.get("x-unit") else words


def _range(field: Schema) -> str:
    low, high = field.get("minimum"), field.get("maximum")
    if (low, high) == (0, _EXACT):
        return ""
    if low is not None and high is not None and high != _EXACT:
        return f"{_number(low)} to {_number(high)}"
    if low is not None:
        return f"at least {_number(low)}"
    if high is not None:
        return f"at most {_number(high)}"
    if "exclusiveMinimum" in field:
        return f"more than {_number(field['exclusiveMinimum'])}"
    if "maxItems" in field and field.get("minItems") == field["maxItems"]:
        return f"exactly {field['maxItems']:,} entries"
    for most, what in (("maxLength", "characters"), ("maxItems", "entries")):
        if most in field and (most, field[most]) != ("maxLength", _LONGEST):
            return f"at most {field[most]:,} {what}"
    return ""


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"

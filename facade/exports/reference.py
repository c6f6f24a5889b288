"""The reference pages: devices, topics, messages, alerts and enumerations, from the ICD.

Repeated entries appear once. An attribute that is the same in an earlier class is a link to its page; the attributes of
a stream's account are a table of streams and one entry for each figure; the attributes of alarm conditions are links to
the runbook.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

from facade.bus.rights import RightsRow, as_rows
from facade.exports import arguments
from facade.exports.asyncapi import EXAMPLE_KEY, ends, message_names
from facade.exports.markdown import anchor, code, code_block, escaped, items, link, page, paragraph, table
from facade.icd.expand import account_attribute
from facade.icd.fields import Schema, properties, split_version
from facade.icd.model import STREAM, Attribute, CommandDefinition, Condition, DeviceClass, Icd, Query
from facade.icd.topic_model import Figure, Topic, Window
from facade.icd.units import unit_of
from facade.icd.words import (
    AttributeFamily,
    duration_in_words,
    effect_in_words,
    families,
    limits_in_words,
    ranges,
    result_in_words,
    sampling_in_words,
    source_in_words,
    staleness_in_words,
    type_in_words,
)
from facade.instances import FAMILIES

_COMMANDS = (
    "A call returns at once, as soon as the command is on the bus: `DevVarLongStringArray` with ResultCode QUEUED and "
    "the command's id. A call that is refused says what was expected. The outcome is COMPLETED, FAILED, ABORTED or "
    "REJECTED as the controller says, TIMED_OUT if it says nothing in time, or UNDELIVERED if it never began. It is "
    "shown by `longRunningCommandResult` and `lrcFinished`, and `GetCommand` gives all that is known of it."
)
_TERMS = (
    "A command that cannot begin in time never begins. Reports of progress extend the time for the outcome. A second "
    "execution, after a crash, does no harm, unless the command is *not repeatable*: a controller must not execute it "
    "again. A command that *overtakes* is allowed while another one is under way, and cancels it and the queued ones."
)
_EXECUTORS = (
    "Programs below the subarrays take orders and are not Tango devices. A controller writes an order to the topic "
    "`orders`; `parent` names the command that it belongs to. A device server checks it and puts it on `commands`. "
    "See [how a controller gives orders](../how-to/write-a-controller.md#give-orders-to-other-controllers). The terms "
    "are those of the [commands of SdpMaster](SdpMaster.md#commands)."
)
_CONDITIONS = (
    "One attribute for each condition of the runbook shows the state of its most urgent alarm: `DevEnum`, with the "
    "values of {state}."
)
_ACCOUNTS = (
    "Each figure of the account of a stream is an attribute: `ingestHeapsLag` is the lag of `ingest.heaps`. The table "
    "has the beginnings of the names, and the headings below it have the ends."
)
_QUERIES = "The device answers these itself, from memory, or puts an operator's action on the bus."


def device_page(icd: Icd, device_class: DeviceClass) -> str:
    """Return the page of one device class."""
    found = list(families(device_class.attributes))
    own = [one for one in found if one.first.account is None and one.name not in icd.conditions]
    homes = _homes(icd, device_class, own)
    described = [one for one in own if homes[one.name] == device_class]
    return page(
        device_class.name,
        paragraph(escaped(device_class.description)),
        items(_facts(device_class)),
        "## Attributes",
        paragraph(f"{len(device_class.attributes)} attributes, and Tango's own State and Status."),
        *_elsewhere(icd, device_class, own),
        *(block for one in described for block in _attribute(icd, device_class, one)),
        *_conditions(icd, device_class),
        *_accounts(icd, device_class),
        *_commands(icd, device_class),
        *_queries(icd, device_class),
    )


def entry(icd: Icd, device_class: DeviceClass, one: AttributeFamily) -> str:
    """Return a link to the entry of an attribute, named with its class."""
    return link(
        code(f"{device_class.name}.{one.name}"), f"{_homes(icd, device_class, [one])[one.name].name}.md", one.name
    )


def _homes(icd: Icd, device_class: DeviceClass, found: Sequence[AttributeFamily | Query]) -> dict[str, DeviceClass]:
    """Return the first class with an equal attribute or command, whose page has the entry."""
    homes = {one.name: device_class for one in found}
    left = list(found)
    for other in takewhile(lambda other: other != device_class, icd.classes.values()):
        entries = [*families(other.attributes), *other.queries]
        homes |= {one.name: other for one in left if one in entries}
        left = [one for one in left if one not in entries]
    return homes


def _elsewhere(icd: Icd, device_class: DeviceClass, found: Sequence[AttributeFamily | Query]) -> Iterator[str]:
    """Name the attributes or commands whose entries are on the pages of other classes."""
    homes = _homes(icd, device_class, found)
    for other in icd.classes.values():
        names = [
            link(code(one.name), f"{other.name}.md", one.name)
            for one in found
            if other != device_class and homes[one.name] == other
        ]
        if names:
            yield paragraph(f"The same as on {other.name}, with the defaults of this page: {', '.join(names)}.")


def _facts(device_class: DeviceClass) -> Iterator[str]:
    family = FAMILIES.get(device_class.family)
    yield f"Device: {code(device_class.device)}" + (f", one for each {family.word}" if family else "")
    yield f"Device-server instance: {code(f'SdpFacade {device_class.instance}')}"
    yield f"Events: {sampling_in_words(device_class.sampling)} apart"
    silent = device_class.stale_after
    yield f"Values are invalid after {duration_in_words(silent)} of silence" if silent else "Values stay valid"
    yield f"[Terms](index.md#{anchor('Devices')}) of this page"


def _conditions(icd: Icd, device_class: DeviceClass) -> Iterator[str]:
    if device_class.conditions:
        yield "## Attributes of alarm conditions"
        state = link("AlarmState", "enums.md", "AlarmState")
        names = ", ".join(link(code(name), "alerts.md", name) for name in icd.conditions)
        yield paragraph(f"{_CONDITIONS.format(state=state)} {names}.")


def _accounts(icd: Icd, device_class: DeviceClass) -> Iterator[str]:
    """Show the attributes of accounts: the streams with an account, then each figure once."""
    found: dict[Figure, dict[str, Attribute]] = {}
    for one in device_class.attributes:
        if one.account is not None:
            found.setdefault(one.account.figure, {})[one.account.stream] = one
    if not found:
        return
    streams = list(dict.fromkeys(stream for those in found.values() for stream in those))
    yield "## Attributes of each stream"
    yield paragraph(_ACCOUNTS)
    yield table(("attributes", "stream", "records"), (_stream(icd, one) for one in streams))
    for figure, those in found.items():
        yield f"### {code(account_attribute('{}', figure))}"
        yield from _figure(icd, device_class, those, streams)


def _stream(icd: Icd, stream: str) -> tuple[str, str, str]:
    account = icd.topics[stream].account
    return (
        code(account_attribute(stream, "{}")),
        link(code(stream), "topics.md", stream),
        escaped(account.about if account else ""),
    )


def _figure(
    icd: Icd, device_class: DeviceClass, those: Mapping[str, Attribute], streams: Sequence[str]
) -> Iterator[str]:
    """Describe a figure by its attribute of the first stream, with the streams that have it or differ in it."""
    first = next(iter(those.values()))
    texts: dict[str, list[str]] = {}
    for stream, one in those.items():
        texts.setdefault(one.description.partition("; stream ")[0], []).append(code(stream))
    what, *differs = next(iter(texts)).split(": ") if len(texts) > 1 else list(texts)
    yield paragraph(f"{escaped(what)}.")
    facts = list(
        _attribute_facts(icd, device_class, AttributeFamily("", first.label.partition(": ")[2], "", first, ()))
    )
    if differs:
        facts += [f"{', '.join(of)}: {escaped(text.removeprefix(f'{what}: '))}" for text, of in texts.items()]
    if len(those) < len(streams):
        facts.append(f"Streams: {', '.join(map(code, those))}")
    limited = [stream for stream, one in those.items() if one.limits is not None]
    if 0 < len(limited) < len(those):
        facts.append(f"The limits apply to {', '.join(map(code, limited))}")
    yield items(facts)


def _attribute(icd: Icd, device_class: DeviceClass, one: AttributeFamily) -> Iterator[str]:
    yield f"### {code(one.name)}"
    yield paragraph(escaped(one.description))
    yield items(_attribute_facts(icd, device_class, one))


def _attribute_facts(icd: Icd, device_class: DeviceClass, one: AttributeFamily) -> Iterator[str]:
    attribute = one.first
    if one.parts:
        yield f"{len(one.parts)} attributes: {code('{}')} is {ranges(one.parts)}"
    unit = unit_of(icd, attribute)
    kind = code(type_in_words(attribute)) + (f" \\[{unit}\\]" if unit else "")
    values = f" ({link(attribute.enum, 'enums.md', attribute.enum)})" if attribute.enum else ""
    yield f"{kind}{values}, label: {escaped(one.label)}{', for experts' if attribute.expert else ''}"
    if attribute.source is not None or attribute.reported:
        yield f"Source: {_source(attribute)}"
    if attribute.access == "READ_WRITE":
        yield "Can be written"
    if attribute.initial is not None:
        yield f"Until something was reported: {code(attribute.initial)}"
    if attribute.sampling is not None and attribute.sampling != device_class.sampling:
        yield f"Events: {sampling_in_words(attribute.sampling)} apart"
    if not attribute.is_pushed:
        yield "Too large for an event: a data-ready event says that it can be read"
    if attribute.stale_after is not None and attribute.stale_after != device_class.stale_after:
        yield f"Invalid after {staleness_in_words(device_class, attribute)}" if attribute.stale_after else "Never stale"
    if attribute.limits is not None:
        yield f"Limits: {escaped(limits_in_words(attribute.limits))}"


def _source(attribute: Attribute) -> str:
    words = escaped(source_in_words(attribute))
    topic = attribute.source.topic if attribute.source else None
    return words.removesuffix(topic) + link(code(topic), "topics.md", topic) if topic else words


def _commands(icd: Icd, device_class: DeviceClass) -> Iterator[str]:
    if not device_class.commands:
        return
    yield "## Commands"
    first = next(one for one in icd.classes.values() if one.commands)
    if device_class == first:
        yield paragraph(f"{_COMMANDS} See [how to command from TM](../how-to/command-from-tm.md).")
        yield paragraph(_TERMS)
    else:
        yield paragraph(f"The terms are those of {link(first.name, f'{first.name}.md', 'Commands')}.")
    for command in device_class.commands:
        yield f"### {code(command.name)}"
        yield paragraph(escaped(command.description))
        yield items(_command_facts(icd, command))
        if command.argument and (example := arguments.example(icd, command.argument)) is not None:
            yield paragraph("An example of its argument:")
            yield code_block("json", arguments.as_text(example))


def _command_facts(icd: Icd, command: CommandDefinition) -> Iterator[str]:
    if command.argument is None:
        yield "Argument: none"
    else:
        versions = icd.versions(command.argument)
        place = code(f"schemas/commands/{command.argument}-*.schema.json")
        yield f"Argument: JSON text, ska-sdp-{command.argument}, versions {versions}. The schemas are {place}"
    if command.state:
        yield f"Allowed in State: {', '.join(command.state)}"
    if command.obs_state:
        yield f"Allowed in {link('obsState', 'enums.md', 'ObsState')}: {', '.join(command.obs_state)}"
    if command.targets:
        yield f"Leads to: {escaped(effect_in_words(command))}"
    if command.commanded:
        yield f"commandedObsState after it: {command.commanded}"
    begin, outcome, most = map(duration_in_words, (command.start_within, command.deadline, command.ceiling))
    yield f"Begins within {begin}; outcome within {outcome}, with progress up to {most}"
    if command.orders:
        yield f"Its controller may order {', '.join(map(code, command.orders))}"
    if not command.repeatable:
        yield "Not repeatable"
    if command.overtakes:
        yield "Overtakes"
    if command.approval_within:
        yield f"May wait for a second person, for up to {duration_in_words(command.approval_within)}"


def executors_page(icd: Icd) -> str:
    """Return the page of the executors."""
    blocks = []
    for name, one in icd.executors.items():
        family = FAMILIES.get(one.family)
        each = f", one for each {family.word}" if family else ""
        blocks += [f"## {name}", paragraph(escaped(one.description)), items([f"Name: {code(one.device)}{each}"])]
        for command in one.commands:
            blocks += [f"### {code(command.name)}", paragraph(escaped(command.description))]
            blocks.append(items(_command_facts(icd, command)))
    return page("Executors", paragraph(_EXECUTORS), *blocks)


def _queries(icd: Icd, device_class: DeviceClass) -> Iterator[str]:
    if not device_class.queries:
        return
    yield "## Commands that the device answers"
    yield paragraph(_QUERIES)
    yield from _elsewhere(icd, device_class, device_class.queries)
    homes = _homes(icd, device_class, device_class.queries)
    for query in (one for one in device_class.queries if homes[one.name] == device_class):
        yield f"### {code(query.name)}"
        yield paragraph(escaped(query.description))
        yield items(_query_facts(query))


def _query_facts(query: Query) -> Iterator[str]:
    argument = f"{code(query.argument)}. {escaped(query.argument_description)}"
    yield "Argument: none" if query.argument == "DevVoid" else f"Argument: {argument}"
    result = result_in_words(query).replace(query.result, code(query.result))
    yield f"Result: {result}. {escaped(query.result_description)}"


_TOPICS = (
    "Names are without the prefix of the deployment (`SDP_TOPIC_PREFIX`). Topics are created explicitly, never by use. "
    "The cleanup policy of a topic that keeps the newest record of each key is `compact`, of any other `delete`. Time "
    "stamps are `LogAppendTime` (the broker's) or `CreateTime` (the sender's). The class is the quality of service."
)
_ROLES = (
    "Each topic names the roles that write and read it. [Rights](rights.md) has all rights of each role; [secure the "
    "bus](../how-to/secure-the-bus.md) shows how to give them."
)
_RIGHTS = (
    "Each role of the interface has a principal of its own, and these rights only. Names are without the prefix of the "
    "deployment. `Read` and `Write` include `Describe`. A `*` at the end of a transactional id stands for the slot of "
    "a worker. Rights on each topic come on top of reading and writing. The quota is that of the principal at each "
    "broker. [Secure the bus](../how-to/secure-the-bus.md) shows how to give the rights."
)
_MORE_RIGHTS = (
    "Device servers and other readers belong to no group. Even so, Kafka's client asks for the coordinator of a group "
    "named `reader`. Without Describe on it they work, but log `GROUP_AUTHORIZATION_FAILED`.",
    "Topics that a setting switches on are part of the rights only with that setting, such as `history`. With the "
    "setting `log_export`, each role that writes `heartbeats` may also write to the topic that it names.",
    "A controller has a group of its own to name, in the SDK its component; `sdp-facade rights` takes it as an option.",
    "`watch`, `alerts follow`, `register` and the operator's page use Tango only.",
)
_MESSAGES = (
    "Each message is a JSON object with the name and major version of its schema in the field `schema`. The schemas "
    "themselves (JSON Schema 2020-12) are `schemas/messages/*.schema.json`. Fields that are not listed are refused. "
    "Unless a field says otherwise, an integer is 0 to 2^53 - 1, and a string has at most 200 characters."
)
_PARTS = {
    "send": (
        "Messages that you write",
        "Programs of SDP write these messages. Ids and times in the examples are made up.",
    ),
    "receive": ("Messages that you read", "The facade writes these messages for programs of SDP."),
    "": (
        "Internal messages",
        "Only the facade writes and reads these messages. They may change with any release. Their schemas describe the "
        "fields.",
    ),
}
"""Heading and introduction of each part of the page of messages, by the use of its messages in SDP's programs."""
_OWN_TOOL = "operator-tool"
"""Role of the commands of `sdp-facade`: no team writes such a program."""
_ENCODINGS = {
    "json": "JSON, a message in a record",
    "arrow": "Arrow, many messages as columns in a record, with a header [`batch`](messages.md#batch)",
}
_WIDTH = 118
_EXACT = 2**53 - 1
"""Greatest integer of a message: exact in each JSON reader."""
_LONGEST = 200
"""Length limit of most texts; the page has it once."""
_BYTES = ((1_048_576, "MiB"), (1024, "KiB"))


def topics_page(icd: Icd) -> str:
    """Return the page of all topics."""
    blocks = ["## Roles", paragraph(_ROLES), items(_roles(icd))]
    for name, topic in icd.topics.items():
        blocks += [f"## {code(name)}", paragraph(escaped(topic.description)), items(_topic_facts(topic))]
    return page("Topics", paragraph(_TOPICS), *blocks)


def rights_page(icd: Icd) -> str:
    """Return the page of the rights of all roles."""
    blocks = [paragraph(_RIGHTS), items(_MORE_RIGHTS)]
    for row in as_rows(icd):
        blocks += [f"## {code(row.principal)}", items(_rights_facts(row))]
    return page("Rights", *blocks)


def _rights_facts(row: RightsRow) -> Iterator[str]:
    for title, names in (("Reads", row.reads), ("Writes", row.writes)):
        if names:
            yield f"{title}: {_names(names)}"
    if row.further:
        yield f"On each topic: {', '.join(row.further)}"
    if row.groups:
        yield f"Groups: {', '.join(row.groups)}"
    if row.transactional_id:
        yield f"Transactional id: {code(row.transactional_id)}"
    if row.rate:
        yield f"Quota: {row.rate / 1e6:g} MB/s"


def authority_page(icd: Icd) -> str:
    """Return the page of the kinds of records, with the roles that write them."""
    rows = [
        (
            code(kind),
            link(code(name), "topics.md", name),
            ", ".join(code(role) for role in topic.writers if kind in _written(name, topic, role)),
            escaped(
                " ".join(
                    sorted(
                        {
                            topic.operation(one, "send").summary
                            for one in topic.writers
                            if kind in _written(name, topic, one)
                        }
                    )
                )
            ),
        )
        for name, topic in icd.topics.items()
        for kind in message_names(name, topic)
    ]
    shared = [
        (link(code(name), "topics.md", name), escaped(one.shared)) for name, one in icd.topics.items() if one.shared
    ]
    return page(
        "Authority",
        paragraph(_AUTHORITY),
        table(("record", "topic", "written by", "purpose"), rows),
        "## Topics with several writers",
        paragraph(_SHARED),
        table(("topic", "why, and what a record proves"), shared),
    )


def _written(name: str, topic: Topic, role: str) -> Sequence[str]:
    """Return the kinds of records that a role writes to a topic."""
    return topic.operation(role, "send").messages or message_names(name, topic)


def messages_page(icd: Icd) -> str:
    """Return the page of all messages, field by field: first those that programs of SDP write, with an example each."""
    sides = dict(_sides(icd))
    blocks = []
    for side, (heading, introduction) in _PARTS.items():
        names = [name for name in icd.messages if sides.get(name, "") == side]
        blocks += [f"## {heading}", paragraph(introduction)] if names else []
        for name in names:
            schema = icd.messages[name]
            blocks += [f"### {code(name)}", paragraph(escaped(str(schema.get("description", ""))))]
            where = [link(code(topic), "topics.md", topic) for topic, one in icd.topics.items() if name in _of(one)]
            on = f"On {', '.join(where)}." if where else "In a record's header, or as part of other records."
            if (current := split_version(name)[0]) != name:
                on = f"An earlier version of {code(current)}, which the facade reads as well."
            if side:
                blocks += [on if len(where) != 1 else "", *_example(icd, name), "\n".join(_fields(schema, 0))]
            else:
                blocks.append(on)
    return page("Messages", paragraph(_MESSAGES), *blocks)


def _sides(icd: Icd) -> Iterator[tuple[str, str]]:
    """Return the use of each message in SDP's programs; written ones come last, as they are often read too."""
    found: dict[str, set[str]] = {"receive": set(), "send": set()}
    examples = {name for name, schema in icd.messages.items() if "examples" in schema}
    for topic, one in icd.topics.items():
        headers = [name for _, name in _headers(icd, topic)]
        for role, side in ends(one):
            if icd.roles[role].side == "SDP":
                names = [*(one.operation(role, side).messages or message_names(topic, one)), *headers]
                found[side].update(name for name in names if role != _OWN_TOOL or name in examples)
    for what, its in found.items():
        yield from ((name, what) for name in its)


def _headers(icd: Icd, topic: str) -> Iterator[tuple[str, str]]:
    """Return the headers that describe the bytes of a topic's records, with the message of each."""
    if (header := icd.topics[topic].header) is not None:
        yield header.name, header.message
    if "arrow" in icd.topics[topic].encodings:
        yield "batch", "batch"


def _example(icd: Icd, name: str) -> Iterator[str]:
    """Return the examples of a message, each as a record to copy, with the topic of the record."""
    for example in icd.messages[name].get("examples", ()):
        yield _where(icd, name, icd.messages[name].get(EXAMPLE_KEY))
        yield code_block("json", "\n".join(_json_lines(example)))


def _where(icd: Icd, name: str, key: str | None) -> str:
    keyed = "without a key" if key is None else f"with the key {code(key)}"
    for topic, one in icd.topics.items():
        on = link(code(topic), "topics.md", topic)
        if name in _of(one):
            return paragraph(f"A record on {on} {keyed}:")
        for header, message in _headers(icd, topic):
            if name == message:
                return paragraph(f"The header {code(header)} of a record on {on} {keyed}:")
    return paragraph("An example:")


def _json_lines(example: Mapping[str, Any]) -> Iterator[str]:
    """Return an object as JSON, with as many fields on a line as fit."""
    line = "{"
    for name, value in example.items():
        field = f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}, "
        if len(line) + len(field) > _WIDTH and line.strip("{ "):
            yield line.rstrip()
            line = " "
        line += field
    yield line.removesuffix(", ") + "}"


def _of(topic: Topic) -> tuple[str, ...]:
    return ((topic.message,) if topic.message else ()) + topic.also


def _roles(icd: Icd) -> Iterator[str]:
    for name, role in icd.roles.items():
        whose = "of the facade" if role.side == "facade" else "of SDP"
        yield f"{code(name)} ({whose}): {escaped(role.description)}"


def _names(roles: Iterable[str]) -> str:
    return ", ".join(map(code, roles))


def _topic_facts(topic: Topic) -> Iterator[str]:
    messages = ", ".join(link(code(name), "messages.md", name) for name in _of(topic))
    yield f"Messages: {messages}" if messages else "Messages: bytes as they came"
    if len(topic.encodings) > 1:
        yield f"Encodings: {', '.join(_ENCODINGS[one] for one in topic.encodings)}"
    yield f"Key: {escaped(topic.key)}"
    yield f"Written by: {_names(topic.writers)}; read by: {_names(topic.readers)}"
    kept = "the newest record of each key" if topic.cleanup == "compact" else "all records"
    kept += f" for {duration_in_words(topic.retention)}" if topic.retention is not None else ""
    yield f"Keeps: {kept}"
    partitions = f"{topic.partitions}, or more" if topic.partitions_may_grow else str(topic.partitions)
    yield f"Partitions: {partitions}; largest record batch: {_size(topic.max_bytes)}"
    yield f"Times: {'the broker' if topic.timestamp == 'LogAppendTime' else 'the sender'}'s; class: {topic.qos}"
    if topic.window is not None:
        yield from _window(topic.window)
    if topic.config:
        yield f"Further settings: {', '.join(code(f'{key}={value}') for key, value in topic.config.items())}"


def _window(window: Window) -> Iterator[str]:
    each = "" if window.group is None else f", for each {code(window.group)}"
    yield (
        f"Windows of {duration_in_words(window.length)} by {code(window.time)}{each}, aggregated on "
        f"{link(code(window.summary), 'topics.md', window.summary)}; closed when partitions are read up to "
        f"{duration_in_words(window.disorder)} after the end of a window"
    )
    yield (
        f"Late: data time more than {duration_in_words(window.lateness)} behind the broker's; refused: more than "
        f"{duration_in_words(window.ahead)} ahead of it"
    )
    if window.sequence is not None:
        restart = "" if window.epoch is None else f", restarts with each {code(window.epoch)}"
        yield f"Sequence: {code(window.sequence)}{restart}"


def _size(size: int) -> str:
    for length, unit in _BYTES:
        if size % length == 0:
            return f"{size // length} {unit}"
    return f"{size:,} B"


def _fields(schema: Schema, depth: int) -> Iterator[str]:
    required = schema.get("required", [])
    for name, field in properties(schema).items():
        if "const" in field:
            continue  # the introduction of the page has it
        yield from _field(code(name), field, depth, name in required)


def _field(name: str, field: Schema, depth: int, required: bool) -> Iterator[str]:
    facts = ", ".join(filter(None, (_kind(field), "" if required else "optional", _range(field))))
    description = escaped(str(field.get("description", "")))
    yield items([f"{name} ({facts}): {description}" if description else f"{name} ({facts})"], depth)
    yield from _fields(field, depth + 1)
    for keyword, what in (("items", "each entry"), ("additionalProperties", "each value")):
        if isinstance(field.get(keyword), dict):
            yield from _field(what, field[keyword], depth + 1, True)


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


_FOLDER = "docs/reference"
_ALERTS = (
    "This page is the runbook of the alarms: each condition has its meaning, its causes, what to check, the response, "
    "and how the alarm ends (the rationalization of IEC 62682). Any number of sources may raise a condition, and each "
    "of them has its own alarm. The attribute of {classes} shows the state of the most urgent one. `otherConditions` "
    "and `unknownConditions` show conditions that are not listed here."
)
_AUTHORITY = (
    "This page lists the roles that may write each kind of record. The brokers enforce the topic of a record: they "
    "refuse any other role. They do not look into records, so the kind of a record is judged by its readers: on a "
    "topic, they take the kinds that are listed for it, and others are dead letters. The names in records, such as "
    "that of an operator, are stated by their writers; they are as trustworthy as the roles that may write there. "
    "Beside these roles, `replay` may write to each topic of a deployment that shows a replay."
)
_SHARED = "On all other topics, a record proves that its writer has the only role that may write there."
_ALERT_TERMS = (
    "An alarm is raised once its condition has lasted for the *on delay*, and cleared once it has gone for the *off "
    "delay*. A *latching* alarm stays until it is reset. *Re-alarm*: an acknowledged alarm must be acknowledged again "
    "if there is news of it after this time, or at once when a value has grown by this factor. An alarm is suppressed "
    "while another one explains it. Locations say where sources are:"
)
_ENUMS = "Labels of the Tango enumerations with their values. Enumerations that SKA defines have SKA's values."
_INDEX = (
    "These pages describe the Tango devices of SDP, and the topics and messages of its bus. They are derived from the "
    "interface control document (ICD), version {version}. The ICD is data: `schemas/icd/*.toml`, "
    "`schemas/messages/*.schema.json` and `schemas/commands/*.schema.json`."
)
_READING = (
    "The first line of an attribute has its Tango type, its unit in brackets, and its label.",
    "Source: the records from which the value is made, and their topic. *Window* means the newest closed window of "
    "data time. *Total* means the count since the facade first read the topic. Values that controllers "
    "report come from the topic `state`. An attribute without a source comes from the device server itself.",
    "Events and silence: the values at the beginning of a page apply, unless an attribute says otherwise.",
    "Attributes are pushed as change and archive events from code, and as alarm events when the quality changes; none "
    "is polled. Of large arrays a data-ready event says that they can be read.",
    "Events: the shortest and the longest time between two events while the stream is alive, and the deadbands. A "
    "change within the deadband causes no event. A change of quality always causes one.",
    "Invalid: after this time without data the value has the quality ATTR_INVALID. A value that is never stale stays "
    "valid in silence.",
    "Limits: at a limit the quality is ATTR_WARNING or ATTR_ALARM.",
)
_OTHERS = (
    ("Topics", "topics.md", "keys, partitions, retention, and the roles that write and read them"),
    ("Rights", "rights.md", "the rights of each role: topics, groups, transactional ids and quotas"),
    ("Authority", "authority.md", "who may write which kind of record, and what a record proves"),
    ("Messages", "messages.md", "the fields of each message"),
    ("Executors", "executors.md", "the executors that controllers give orders to, with their commands"),
    ("Alerts", "alerts.md", "the runbook: causes, checks and the response for each alarm condition"),
    ("Enumerations", "enums.md", "labels and values"),
)


def export(icd: Icd) -> Mapping[str, str]:
    """Return all reference pages; see `facade.exports.files`."""
    pages = {
        "index.md": _index(icd),
        "topics.md": topics_page(icd),
        "rights.md": rights_page(icd),
        "authority.md": authority_page(icd),
        "messages.md": messages_page(icd),
        "executors.md": executors_page(icd),
        "alerts.md": _alerts(icd),
        "enums.md": _enums(icd),
        **{f"{name}.md": device_page(icd, device_class) for name, device_class in icd.classes.items()},
    }
    return {f"{_FOLDER}/{name}": content for name, content in pages.items()}


def _index(icd: Icd) -> str:
    classes = (
        f"{link(name, f'{name}.md')}: {escaped(_first_sentence(device_class.description))}"
        for name, device_class in icd.classes.items()
    )
    others = (f"{link(title, name)}: {what}" for title, name, what in _OTHERS)
    text = paragraph(_INDEX.format(version=icd.version))
    return page(
        "Reference",
        text,
        "## Devices",
        items(classes),
        "The pages of the devices use these terms:",
        items(_READING),
        "## Topics, messages and alarms",
        items(others),
    )


def _first_sentence(text: str) -> str:
    return text.split(". ")[0].removesuffix(".") + "."


def _alerts(icd: Icd) -> str:
    blocks = []
    for name, condition in icd.conditions.items():
        blocks += [f"## {code(name)}", paragraph(f"{escaped(condition.label)}. {escaped(condition.description)}")]
        blocks.append(items(_condition_facts(condition)))
    states = link("AlarmState", "enums.md", "AlarmState")
    more = f"The states are those of {states}; the message is {link('alert', 'messages.md', 'alert')}."
    classes = " and ".join(link(code(name), f"{name}.md") for name, one in icd.classes.items() if one.conditions)
    text = paragraph(f"{_ALERTS.format(classes=classes)} {more}")
    places = (
        (
            code(name),
            escaped(one.description),
            ", ".join(map(code, one.sources)),
            code(one.within) if one.within else "",
        )
        for name, one in icd.locations.items()
    )
    locations = table(("location", "what it is", "sources", "within"), places)
    return page("Alerts", text, paragraph(_ALERT_TERMS), locations, *blocks)


def _condition_facts(condition: Condition) -> Iterator[str]:
    yield f"Causes: {escaped(' '.join(condition.causes))}"
    yield f"Check: {escaped(condition.check)}"
    yield f"Response: {escaped(condition.response)}"
    yield f"Ends: {escaped(condition.ends)}"
    re_alarm = ", ".join(
        filter(
            None,
            (
                f"after {duration_in_words(condition.re_alarm)}" if condition.re_alarm else "",
                f"at {condition.re_alarm_growth:g} times a value" if condition.re_alarm_growth else "",
            ),
        )
    )
    facts = (
        f"Priority: {condition.priority}",
        f"severity: {condition.severity}" if condition.severity else "",
        "latching" if condition.latching else "",
        f"on delay: {duration_in_words(condition.on_delay)}" if condition.on_delay else "",
        f"off delay: {duration_in_words(condition.off_delay)}" if condition.off_delay else "",
        f"re-alarm: {re_alarm}" if re_alarm else "",
    )
    yield "; ".join(filter(None, facts))
    if condition.suppressed_by:
        where = {"": "", STREAM: " of the same stream"}
        others = (
            link(code(one), "alerts.md", one) + where.get(at, f" of the {at} in which the source lies")
            for one, at in condition.suppressors
        )
        yield f"Suppressed by: {', '.join(others)}"
    if condition.gathers:
        yield f"Raised by the facade for {condition.gathers} or more alarms that only this one explains"


def _enums(icd: Icd) -> str:
    blocks = []
    for name, labels in icd.enums.items():
        blocks += [f"## {name}", table(("value", "label"), ((str(at), label) for at, label in enumerate(labels)))]
        users = [
            entry(icd, device_class, one)
            for device_class in icd.classes.values()
            for one in families(device_class.attributes)
            if one.first.enum == name and one.name not in icd.conditions
        ]
        blocks.append(paragraph(f"Used by {', '.join(users)}.") if users else "")
    return page("Enumerations", paragraph(_ENUMS), *blocks)

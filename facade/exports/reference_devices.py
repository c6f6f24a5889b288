"""The reference page of a device class: its attributes, its commands, and the commands that it answers itself.

Entries that repeat stand once. Attributes that an earlier class has in the same words are named with a link to its
page; the attributes of a stream's account are a table of streams and one entry for each figure; the attributes of alarm
conditions are links to the runbook.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile

from facade.exports.markdown import anchor, code, escaped, items, link, page, paragraph, table
from facade.icd.expand import account_attribute
from facade.icd.model import Attribute, Command, DeviceClass, Icd, Query
from facade.icd.topic_model import Figure
from facade.icd.units import unit_of
from facade.icd.words import (
    Family,
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
    "Programs below the subarrays take orders and are not Tango devices. An order is a command on the topic "
    "`commands`, as TM's are; `parent` names the command that it belongs to. "
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
    described = [one for one in own if _home(icd, device_class, one) == device_class]
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


def entry(icd: Icd, device_class: DeviceClass, one: Family) -> str:
    """Return a link to the entry of an attribute, named with its class."""
    return link(code(f"{device_class.name}.{one.name}"), f"{_home(icd, device_class, one).name}.md", one.name)


def _home(icd: Icd, device_class: DeviceClass, one: Family | Query) -> DeviceClass:
    """Return the first class that has an attribute or a command in the same words: its page has the entry."""
    for other in takewhile(lambda other: other != device_class, icd.classes.values()):
        if one in (*families(other.attributes), *other.queries):
            return other
    return device_class


def _elsewhere(icd: Icd, device_class: DeviceClass, found: Sequence[Family | Query]) -> Iterator[str]:
    """Name the attributes or commands whose entries are on the pages of other classes."""
    for other in icd.classes.values():
        names = [
            link(code(one.name), f"{other.name}.md", one.name)
            for one in found
            if other != device_class and _home(icd, device_class, one) == other
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
    """Show the attributes of accounts: the streams that have one, then each figure once."""
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
    """Describe one figure by its attribute of the first stream, with the streams that have it or differ in it."""
    first = next(iter(those.values()))
    texts: dict[str, list[str]] = {}
    for stream, one in those.items():
        texts.setdefault(one.description.partition("; stream ")[0], []).append(code(stream))
    what, *differs = next(iter(texts)).split(": ") if len(texts) > 1 else list(texts)
    yield paragraph(f"{escaped(what)}.")
    facts = list(_attribute_facts(icd, device_class, Family("", first.label.partition(": ")[2], "", first, ())))
    if differs:
        facts += [f"{', '.join(of)}: {escaped(text.removeprefix(f'{what}: '))}" for text, of in texts.items()]
    if len(those) < len(streams):
        facts.append(f"Streams: {', '.join(map(code, those))}")
    limited = [stream for stream, one in those.items() if one.limits is not None]
    if 0 < len(limited) < len(those):
        facts.append(f"The limits apply to {', '.join(map(code, limited))}")
    yield items(facts)


def _attribute(icd: Icd, device_class: DeviceClass, one: Family) -> Iterator[str]:
    yield f"### {code(one.name)}"
    yield paragraph(escaped(one.description))
    yield items(_attribute_facts(icd, device_class, one))


def _attribute_facts(icd: Icd, device_class: DeviceClass, one: Family) -> Iterator[str]:
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


def _command_facts(icd: Icd, command: Command) -> Iterator[str]:
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
    if not command.repeatable:
        yield "Not repeatable"
    if command.overtakes:
        yield "Overtakes"


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
    for query in (one for one in device_class.queries if _home(icd, device_class, one) == device_class):
        yield f"### {code(query.name)}"
        yield paragraph(escaped(query.description))
        yield items(_query_facts(query))


def _query_facts(query: Query) -> Iterator[str]:
    argument = f"{code(query.argument)}. {escaped(query.argument_description)}"
    yield "Argument: none" if query.argument == "DevVoid" else f"Argument: {argument}"
    result = result_in_words(query).replace(query.result, code(query.result))
    yield f"Result: {result}. {escaped(query.result_description)}"

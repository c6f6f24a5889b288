"""The reference page of a device class: its attributes, its commands, and what it answers itself."""

from collections.abc import Iterator

from facade.exports.markdown import code, escaped, items, link, page, paragraph, table
from facade.icd.model import Attribute, Command, DeviceClass, Icd, Query
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
_EXECUTORS = (
    "Programs below the subarrays take orders and are not Tango devices. An order is a command on the topic "
    "`commands`, as TM's are; `parent` names the command that it belongs to. "
    "See [how a controller gives orders](../how-to/write-a-controller.md#give-orders-to-other-controllers)."
)
_QUERIES = "The device answers these itself, from memory, or puts an operator's action on the bus."


def device_page(icd: Icd, device_class: DeviceClass) -> str:
    """Return the page of one device class."""
    found = list(families(device_class.attributes))
    return page(
        device_class.name,
        paragraph(escaped(device_class.description)),
        items(_facts(device_class)),
        "## Attributes",
        paragraph(f"{len(device_class.attributes)} attributes, and Tango's own State and Status. {_events(found)}"),
        table(("attribute", "type", "unit"), (_row(device_class, icd, one) for one in found)),
        *(block for one in found for block in _attribute(icd, device_class, one)),
        *_commands(icd, device_class),
        *_queries(device_class),
    )


def _facts(device_class: DeviceClass) -> Iterator[str]:
    family = FAMILIES.get(device_class.family)
    yield f"Device: {code(device_class.device)}" + (f", one for each {family.word}" if family else "")
    yield f"Device-server instance: {code(f'SdpFacade {device_class.instance}')}"
    yield f"Events, unless an attribute says otherwise: {sampling_in_words(device_class.sampling)} apart"
    silent = duration_in_words(device_class.stale_after)
    yield (
        "Values stay valid, unless an attribute says otherwise"
        if not device_class.stale_after
        else (f"Values are invalid after {silent} of silence, unless an attribute says otherwise")
    )


def _events(found: list[Family]) -> str:
    text = (
        "They are pushed as change and archive events from code, and as alarm events when the quality changes; none is"
        " polled."
    )
    if all(one.first.is_pushed for one in found):
        return text
    return f"{text} Large arrays are an exception: a data-ready event says that they can be read."


def _row(device_class: DeviceClass, icd: Icd, one: Family) -> tuple[str, str, str]:
    name = link(code(one.name), f"{device_class.name}.md", one.name)
    return name, code(type_in_words(one.first)), unit_of(icd, one.first)


def _attribute(icd: Icd, device_class: DeviceClass, one: Family) -> Iterator[str]:
    yield f"### {code(one.name)}"
    yield paragraph(escaped(one.description))
    yield items(_attribute_facts(icd, device_class, one))


def _attribute_facts(icd: Icd, device_class: DeviceClass, one: Family) -> Iterator[str]:
    attribute = one.first
    if one.parts:
        yield f"{len(one.parts)} attributes: {code('{}')} is {ranges(one.parts)}"
    unit = unit_of(icd, attribute)
    yield ", ".join(
        filter(
            None,
            (
                f"Type: {code(type_in_words(attribute))}",
                f"unit: {unit}" if unit else "",
                f"label: {escaped(one.label)}",
                f"format: {code(attribute.format)}" if attribute.format else "",
            ),
        )
    )
    if attribute.enum:
        yield f"Values: {link(attribute.enum, 'enums.md', attribute.enum)}"
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
        yield f"Invalid after silence: {staleness_in_words(device_class, attribute)}"
    if attribute.limits is not None:
        yield f"Limits: {escaped(limits_in_words(attribute.limits))}"
    if attribute.expert:
        yield "For experts"


def _source(attribute: Attribute) -> str:
    words = escaped(source_in_words(attribute))
    topic = attribute.source.topic if attribute.source else attribute.account.stream if attribute.account else None
    return words.removesuffix(topic) + link(code(topic), "topics.md", topic) if topic else words


def _commands(icd: Icd, device_class: DeviceClass) -> Iterator[str]:
    if not device_class.commands:
        return
    yield "## Commands"
    yield paragraph(f"{_COMMANDS} See [how to command from TM](../how-to/command-from-tm.md).")
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
    yield (
        f"Begins within {duration_in_words(command.start_within)} or never; its outcome is expected within "
        f"{duration_in_words(command.deadline)}, which reports of progress extend, up to "
        f"{duration_in_words(command.ceiling)}"
    )
    yield f"A second execution, after a crash, does {'no ' if command.repeatable else ''}harm" + (
        "" if command.repeatable else ": a controller must not repeat it"
    )
    if command.overtakes:
        yield "Overtakes: it is allowed while another command is under way, and cancels it with all that is queued"


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


def _queries(device_class: DeviceClass) -> Iterator[str]:
    if not device_class.queries:
        return
    yield "## Commands that the device answers"
    yield paragraph(_QUERIES)
    for query in device_class.queries:
        yield f"### {code(query.name)}"
        yield paragraph(escaped(query.description))
        yield items(_query_facts(query))


def _query_facts(query: Query) -> Iterator[str]:
    argument = f"{code(query.argument)}. {escaped(query.argument_description)}"
    yield "Argument: none" if query.argument == "DevVoid" else f"Argument: {argument}"
    result = result_in_words(query).replace(query.result, code(query.result))
    yield f"Result: {result}. {escaped(query.result_description)}"

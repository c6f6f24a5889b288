"""Checks of devices and topics: the database, servers, State events, commands and queries, and records by schema."""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import tango
from jsonschema import Draft202012Validator

from facade.admin.cluster import FoundTopic
from facade.admin.topics import broker_settings
from facade.flows.mirror.streaming import FORMS, STREAMING
from facade.kernel.bus.dead_letters import PREFIX
from facade.kernel.bus.dead_letters import TOPIC as DEAD_LETTERS
from facade.kernel.bus.port import Record
from facade.kernel.icd.fields import earlier_versions
from facade.kernel.icd.model import DeviceClass, Icd, Query
from facade.kernel.icd.telescope import instance_of
from facade.kernel.icd.topic_model import Topic
from facade.kernel.instances import FAMILIES, number_of, pattern_of
from facade.sdp.batches import BatchReader, Joined, ReadBatch, is_batch
from sdp_facade_clients.conformance.checks import (
    FlowChecks,
    Judge,
    LiveCheck,
    Mismatch,
    NotShown,
    Subject,
    demand,
    flow_checks,
)
from sdp_facade_clients.conformance.live_system import PUSHED, EventStreams, LiveSystem, read_json

_VERSION = "sdpVersion"
"""Attribute with the version of the ICD that a deployment follows."""
_COMMAND_RESULT = "DevVarLongStringArray"
"""[ResultCode], [command id]: the result of SKA's long-running commands."""


# --- The deployment ---


def wanted_devices(system: LiveSystem, device_class: DeviceClass) -> list[str]:
    """Return the devices of a class that the deployment must have."""
    family = device_class.family
    if not family:
        return [device_class.device.lower()]
    first = FAMILIES[family].first
    return [
        device_class.device.format(**{family: number}).lower() for number in range(first, first + _size(system, family))
    ]


def _size(system: LiveSystem, family: str) -> int:
    """Return the size of a family: as an option says, else the largest that a class or SDP itself has."""
    option = {"node": system.options.nodes, "subarray": system.options.subarrays}.get(family)
    if option is not None:
        return option
    numbers = [
        number - FAMILIES[family].first + 1
        for one in system.icd.classes.values()
        if one.family == family
        for device in system.devices[one.name]
        if (number := number_of(one, device)) is not None
    ]
    try:
        name = f"{family}sExpected"
        found = [system.proxy(device).read_attribute(name).value for device in _with(system, name)]
    except tango.DevFailed:  # the checks of the attribute say so
        found = []
    return max([1, *numbers, *(one for one in found if isinstance(one, int))])


def _with(system: LiveSystem, attribute: str) -> list[str]:
    """Return the devices that have an attribute by the ICD."""
    classes = [name for name, one in system.icd.classes.items() if any(a.name == attribute for a in one.attributes)]
    return [device for name in classes for device in system.devices[name]]


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "") if names else "none"


def _in_database(system: LiveSystem, of: Subject) -> str:
    wanted, found = wanted_devices(system, of.entry), system.devices[of.entry.name]
    missing, extra = sorted(set(wanted) - set(found)), sorted(set(found) - set(wanted))
    if missing or extra:
        got = f"missing {_few(missing)}; beyond them {_few(extra)}"
        raise Mismatch(f"{len(wanted)} device(s) as {of.entry.device} in the database", got)
    return f"{len(found)} in the database"


def _instance(system: LiveSystem, of: Subject) -> str:
    servers = set()
    for device in system.devices[of.entry.name]:
        server = str(system.database.get_device_info(device).ds_full_name)
        wanted = instance_of(system.icd.telescope, of.entry.instance)
        if not re.fullmatch(pattern_of(wanted), server.partition("/")[2], re.IGNORECASE):
            raise Mismatch(f"{device} in a server instance {wanted}", server)
        servers.add(server)
    if not servers:
        raise NotShown("no devices in the database")
    return ", ".join(sorted(servers))


def _answers(system: LiveSystem, of: Subject) -> str:
    if not system.database.get_device_info(of.device).exported:
        raise Mismatch("a device that answers", "one that no server has exported")
    begin = system.clock.monotonic()
    state = system.proxy(of.device).state()
    return f"{state} after {(system.clock.monotonic() - begin) * 1e3:.1f} ms"


def _names(system: LiveSystem, of: Subject) -> str:
    attributes = {entry.name for entry in of.entry.attributes}
    commands = {entry.name for entry in (*of.entry.commands, *of.entry.queries)}
    for what, wanted, found in (
        ("attributes", attributes, system.configs(of.device)),
        ("commands", commands, system.commands(of.device)),
    ):
        if missing := sorted(wanted - set(found)):
            raise Mismatch(f"the {len(wanted)} {what} of {of.entry.name}", f"none called {_few(missing)}")
    return f"{len(attributes)} attributes, {len(commands)} commands"


def _state_events(system: LiveSystem, of: Subject) -> str:
    with closing(EventStreams(system.clock)) as subscribed:
        for kind in PUSHED:
            if refused := subscribed.add(system.proxy(of.device), "State", kind).refused:
                raise Mismatch(f"a subscription to {kind} events of State", refused)
    return ", ".join(PUSHED)


def _version(system: LiveSystem, _: Subject) -> str:
    devices = _with(system, _VERSION)
    if not devices:
        raise NotShown(f"there is no device with {_VERSION} to ask")
    text = system.proxy(devices[0]).read_attribute(_VERSION).value
    if text is None:
        raise NotShown(f"{_VERSION} is ATTR_INVALID")
    return demand(system.icd.version, json.loads(text).get("icd"))


# --- Commands and queries ---


def _types(system: LiveSystem, of: Subject) -> str:
    found, entry = system.command(of), of.entry
    argument, result = (entry.argument, entry.result) if isinstance(entry, Query) else ("DevString", _COMMAND_RESULT)
    argument = argument if entry.argument else "DevVoid"
    return demand(f"{argument} -> {result}", f"{found.in_type} -> {found.out_type}")


def _query_description(system: LiveSystem, of: Subject) -> str:
    found = system.command(of)
    text = str(found.in_type_desc)
    if of.entry.argument_description or text not in ("", "Uninitialised", "No input parameter (DevVoid)"):
        demand(of.entry.argument_description, text)
    demand(of.entry.result_description, str(found.out_type_desc))
    return "as in the ICD"


def _may_be_refused(of: Subject) -> bool:
    return of.entry.argument != "DevVoid" and all(of.entry.name not in flow.takes_any for flow in flow_checks())


def _refusal(system: LiveSystem, of: Subject) -> str:
    """Give an argument that is none: nothing may change, and the refusal must help."""
    system.command(of)
    argument = -(2**31) if of.entry.argument in ("DevLong", "DevLong64") else "{not json"
    try:
        answer = system.proxy(of.device).command_inout(of.entry.name, argument)
    except tango.DevFailed as failed:
        text = str(failed.args[0].desc)
    else:
        raise Mismatch(f"a refusal of {argument!r}", f"the answer {answer!r:.80}")
    if "expected" not in text or not ("got" in text or str(argument) in text):
        raise Mismatch("a refusal with the expected and the given value", text)
    return text


@dataclass(frozen=True, slots=True)
class QueryAnswer:
    """A question that changes nothing, and the form of its answer."""

    kind: type[dict[str, Any]] | type[list[Any]]
    keys: tuple[str, ...]
    """Keys of the object, or of each object in the list."""
    argument: Callable[[LiveSystem, str], Any] = lambda system, device: None

    def judge(self, text: str) -> str:
        """Judge whether an answer is JSON of this form."""
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if not isinstance(found, self.kind):
            raise Mismatch(f"a JSON {'object' if self.kind is dict else 'list'}", f"{text!r:.80}")
        for one in found if isinstance(found, list) else [found]:
            if not isinstance(one, dict) or any(key not in one for key in self.keys):
                raise Mismatch(f"objects with the keys {', '.join(self.keys)}", f"{json.dumps(one):.120}")
        return f"list of {len(found)}" if isinstance(found, list) else "object"


def answer_checks(answers: Mapping[str, QueryAnswer], of: Subject) -> list[LiveCheck]:
    """Return the check of a query's answer; none if its form is not known."""

    def judge(system: LiveSystem, of: Subject) -> str:
        system.command(of)
        wanted, begin = answers[of.entry.name], system.clock.monotonic()
        text = system.proxy(of.device).command_inout(of.entry.name, wanted.argument(system, of.device))
        return f"{wanted.judge(text)} after {(system.clock.monotonic() - begin) * 1e3:.1f} ms"

    return [LiveCheck("answer", judge)] if of.entry.name in answers else []


ICD_CHECKS = (LiveCheck("version", _version),)
CLASS_CHECKS = (LiveCheck("devices", _in_database, asks=False), LiveCheck("instance", _instance, asks=False))
DEVICE_CHECKS = (
    LiveCheck("answers", _answers, asks=False),
    LiveCheck("names", _names),
    LiveCheck("state-events", _state_events),
)
COMMAND_CHECKS = (LiveCheck("exists", lambda system, of: system.command(of).cmd_name), LiveCheck("types", _types))
QUERY_CHECKS = (
    *COMMAND_CHECKS,
    LiveCheck("description", _query_description),
    LiveCheck("refusal", _refusal, _may_be_refused),
)


# --- Topics: their settings at the brokers, and the newest records against their schemas ---

_REASON = f"{PREFIX}reason"


def topic_checks(topic: Topic) -> tuple[LiveCheck, ...]:
    """Return the checks of a topic, with one for each setting that follows from the ICD."""
    return (
        LiveCheck("exists", lambda system, of: system.connection.topic(of.name) if _found(system, of) else ""),
        LiveCheck("partitions", _partitions),
        *(LiveCheck(name, _setting(name)) for name in broker_settings(topic)),
        LiveCheck("records", _records),
        LiveCheck("keys", _keys, lambda of: of.name != DEAD_LETTERS),
    )


def _found(system: LiveSystem, of: Subject) -> FoundTopic:
    found = system.topics.get(of.name)
    if found is None:
        raise Mismatch(f"a topic {system.connection.topic(of.name)}", "none of this name")
    return found


def _partitions(system: LiveSystem, of: Subject) -> str:
    found = _found(system, of).partitions
    return str(found) if of.entry.allows(found) else demand(of.entry.partitions, found)


def _setting(name: str) -> Judge:
    return lambda system, of: demand(broker_settings(of.entry)[name], _found(system, of).settings.get(name))


def _sample(system: LiveSystem, of: Subject) -> list[Record]:
    _found(system, of)
    records = system.sample(of.name)
    if not records:
        raise NotShown("nothing flowed")
    return records


def _keys(system: LiveSystem, of: Subject) -> str:
    records = _sample(system, of)
    for record in records:
        if not record.key:
            got = f"none at partition {record.partition} offset {record.offset}"
            raise Mismatch(f"a key: {of.entry.key}", got)
    return f"such as {(records[0].key or b'').decode(errors='replace')}"


def _records(system: LiveSystem, of: Subject) -> str:
    records = _sample(system, of)
    own = [one.records[of.name] for one in flow_checks() if of.name in one.records]
    invalid = own[0](system.icd, records) if own else find_invalid(system.icd, of.name, of.entry, records)
    return judge_records(records, invalid, system.dead_letters(of.name, [record for record, _ in invalid]))


def judge_records(
    records: list[Record], invalid: list[tuple[Record, str]], dead_letters: frozenset[tuple[int, int]]
) -> str:
    """Judge records: anybody may write nonsense to a topic, and a system is right that sets it aside."""
    missing = [(record, wrong) for record, wrong in invalid if (record.partition, record.offset) not in dead_letters]
    if missing:
        record, wrong = missing[0]
        first = f"the first one, partition {record.partition} offset {record.offset}: {wrong}"
        expected = f"{len(records)} records by the schema, or their dead letters"
        raise Mismatch(expected, f"{len(missing)} with neither; {first}")
    return f"{len(records)} records" + (f", {len(invalid)} of them set aside as dead letters" if invalid else "")


def find_invalid(icd: Icd, name: str, topic: Topic, records: list[Record]) -> list[tuple[Record, str]]:
    """Return the records that differ from their schemas, each with its first mistake."""
    header, message = headers_of(icd).get(name, ("", ""))
    messages = (message,) if message else (topic.message, *topic.also) if topic.message else ()
    schemas = [schema for one in messages for schema in (icd.messages[one], *earlier_versions(icd, one))]
    validators = {one["properties"]["schema"]["const"]: Draft202012Validator(one) for one in schemas}
    batches = BatchReader(schemas[0], (), earlier_versions(icd, messages[0])) if "arrow" in topic.encodings else None

    def mistake(record: Record) -> str:
        headers = dict(record.headers)
        if batches is not None and is_batch(record.value):
            return _in_batch(batches, record)
        if name == DEAD_LETTERS:
            return "" if headers.get(_REASON) else f"expected a header {_REASON}, got {', '.join(headers) or 'none'}"
        if record.value is None or not validators:
            return ""  # a tombstone, or bytes without a schema
        return _in_json(headers.get(header, b"") if header else record.value, validators)

    return [(record, wrong) for record in records if (wrong := mistake(record))]


def headers_of(icd: Icd) -> dict[str, tuple[str, str]]:
    """Return the topics whose records are described by a header: its name and its message."""
    headers = {name: topic.header for name, topic in icd.topics.items()}
    return {name: (one.name, one.message) for name, one in headers.items() if one is not None}


def _in_batch(reader: BatchReader, record: Record) -> str:
    batch = reader.read(record.value or b"", record.headers)
    if not isinstance(batch, ReadBatch):
        return f"{batch.why.path}: {batch.why.detail}"
    rejected = Joined(reader, [batch]).rejected
    row = min(rejected, default=None)
    return "" if row is None else f"row {row}: {rejected[row].path}: {rejected[row].detail}"


def _in_json(text: bytes, validators: Mapping[str, Any]) -> str:
    try:
        document = read_json(text)
    except ValueError as error:
        return f"expected JSON, got {text!r:.60} ({error})"
    version = str(document.get("schema", "") if isinstance(document, dict) else "")
    validator = validators.get(version) or next(iter(validators.values()))
    wrong = min(validator.iter_errors(document), key=lambda one: str(one.json_path), default=None)
    return f"{wrong.json_path}: {wrong.message:.150}" if wrong else ""


# --- The archive: orders to a replay, in a deployment that shows none ---

_ORDERS: Mapping[str, Any] = {"Pause": None, "Resume": None, "Step": 1, "Seek": "2027-01-14T18:00"}


def _replay_order(system: LiveSystem, of: Subject) -> str:
    system.command(of)
    proxy = system.proxy(of.device)
    if str(proxy.status()).startswith("REPLAY"):
        raise NotShown("the deployment shows a replay, which is not to be disturbed")
    try:
        answer = proxy.command_inout(of.entry.name, _ORDERS[of.entry.name])
    except tango.DevFailed as failed:
        return str(failed.args[0].desc)
    raise Mismatch("a refusal, as no replay is shown", f"the answer {answer!r:.80}")


ARCHIVE = FlowChecks(
    commands=lambda _, of: [LiveCheck("effect", _replay_order)] if of.device_class.name == "SdpArchive" else []
)


# --- Calibration tables: their queries, and the bytes of one table ---

_CONTENT_WITHIN, _PAUSE = 20.0, 0.3
"""Longest wait for bytes that the device may not have yet, and the time between two tries [s]."""


def _some_product(system: LiveSystem, device: str) -> str:
    try:
        tables = json.loads(system.proxy(device).ListTables())
    except ValueError:
        raise NotShown("ListTables gives no JSON, so no table is known") from None
    complete = [one for one in tables if one.get("state") == "COMPLETE"]
    if not complete:
        raise NotShown("no table is complete yet")
    return str(complete[0]["product"])


def _table_content(system: LiveSystem, of: Subject) -> str:
    system.command(of)
    proxy, deadline = system.proxy(of.device), system.clock.monotonic() + _CONTENT_WITHIN
    while True:
        table = json.loads(proxy.GetTable(_some_product(system, of.device)))
        if table["size"] > of.entry.max_bytes:
            raise NotShown(f"the newest table has {table['size']} bytes, which is more than {of.entry.max_bytes}")
        try:
            form, content = proxy.command_inout(of.entry.name, table["table"])
        except tango.DevFailed:
            if system.clock.monotonic() > deadline:
                raise
            system.clock.sleep(_PAUSE)
            continue
        demand(table["content_type"], form)
        demand(table["sha256"], hashlib.sha256(content).hexdigest())
        return f"{len(content)} bytes of {form}, with the digest that GetTable gives"


_TABLE_ANSWERS = {
    "ListTables": QueryAnswer(list, ("product", "state")),
    "GetTable": QueryAnswer(dict, ("product",), _some_product),
}


def _of_tables(_: LiveSystem, of: Subject) -> Iterable[LiveCheck]:
    is_content = of.entry.name == "GetTableContent"
    return [LiveCheck("content", _table_content)] if is_content else answer_checks(_TABLE_ANSWERS, of)


TABLES = FlowChecks(commands=_of_tables)


# --- The mirror: records in the forms of ESS ---


def find_unknown_flatbuffers(icd: Icd, records: list[Record]) -> list[tuple[Record, str]]:
    """Return the records that are no flatbuffer of a form of ESS."""
    found = [(record, (record.value or b"")[4:8]) for record in records]
    what = f"expected one of {', '.join(FORMS)} as bytes 4 to 7"
    return [(record, f"{what}, got {form!r}") for record, form in found if form not in map(str.encode, FORMS)]


MIRROR = FlowChecks(records={STREAMING: find_unknown_flatbuffers})

"""Checks of topics: their settings at the brokers, and the newest records against their schemas."""

from collections.abc import Mapping
from typing import Any

from jsonschema import Draft202012Validator

from clients.conformance.checks import FlowChecks, Judge, LiveCheck, Mismatch, NotShown, Subject, demand, flow_checks
from clients.conformance.live_system import LiveSystem, read_json
from facade.bus.dead_letters import PREFIX
from facade.bus.dead_letters import TOPIC as DEAD_LETTERS
from facade.bus.kafka.admin import FoundTopic
from facade.bus.kafka.topics import broker_settings
from facade.bus.port import Record
from facade.codec.batches import BatchReader, Joined, ReadBatch, is_batch
from facade.flows.mirror.streaming import FORMS, STREAMING
from facade.icd.fields import earlier_versions
from facade.icd.model import Icd
from facade.icd.topic_model import Topic

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


def find_unknown_flatbuffers(icd: Icd, records: list[Record]) -> list[tuple[Record, str]]:
    """Return the records that are no flatbuffer of a form of ESS."""
    found = [(record, (record.value or b"")[4:8]) for record in records]
    what = f"expected one of {', '.join(FORMS)} as bytes 4 to 7"
    return [(record, f"{what}, got {form!r}") for record, form in found if form not in map(str.encode, FORMS)]


MIRROR = FlowChecks(records={STREAMING: find_unknown_flatbuffers})

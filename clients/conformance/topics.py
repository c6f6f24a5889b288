"""Whether topics are set up as the ICD says, and whether what flows on them is as their messages' schemas say."""

from collections.abc import Mapping
from typing import Any

from jsonschema import Draft202012Validator

from clients.conformance.case import Check, TopicOf, demand
from clients.conformance.flows import flow_checks
from clients.conformance.system import Place, System, read_json
from clients.conformance.verdicts import Mismatch, NotShown
from facade.bus.dead_letters import PREFIX
from facade.bus.dead_letters import TOPIC as DEAD_LETTERS
from facade.bus.kafka.admin import FoundTopic
from facade.bus.kafka.topics import broker_settings
from facade.bus.port import Record
from facade.codec.batches import BatchReader, Joined, ReadBatch, is_batch
from facade.icd.model import Icd
from facade.icd.topic_model import Topic

_REASON = f"{PREFIX}reason"

_SETTINGS: dict[str, tuple[str, ...]] = {
    "cleanup.policy": ("Topic.cleanup",),
    "retention.ms": ("Topic.retention",),
    "max.message.bytes": ("Topic.max_bytes",),
    "message.timestamp.type": ("Topic.timestamp",),
}
"""Kafka's settings that follow from fields of the ICD; all others stand in its table `config`."""
_RECORDS = ("Topic.message", "Topic.also", "Topic.encodings", "Icd.messages")


def topic_checks(topic: Topic) -> tuple[Check[TopicOf], ...]:
    """Return the checks of a topic: one for each setting that the ICD implies."""
    settings = tuple(
        Check(aspect=name, claims=_SETTINGS.get(name, ("Topic.config",)), judge=_setting(name))
        for name in broker_settings(topic)
    )
    return (
        Check(aspect="exists", claims=("Icd.topics",), judge=_exists),
        Check(aspect="partitions", claims=("Topic.partitions", "Topic.partitions_may_grow"), judge=_partitions),
        *settings,
        Check(aspect="records", claims=_RECORDS, judge=_records),
        Check(aspect="keys", claims=("Topic.key",), judge=_keys, applies=lambda of: of.name != DEAD_LETTERS),
    )


def _found(system: System, of: TopicOf) -> FoundTopic:
    found = system.topics.get(of.name)
    if found is None:
        raise Mismatch(f"a topic {system.connection.topic(of.name)}", "none of this name")
    return found


def _exists(system: System, of: TopicOf) -> str:
    _found(system, of)
    return system.connection.topic(of.name)


def _partitions(system: System, of: TopicOf) -> str:
    found = _found(system, of).partitions
    return str(found) if of.entry.allows(found) else demand(of.entry.partitions, found)


def _setting(name: str) -> Any:
    def judge(system: System, of: TopicOf) -> str:
        return demand(broker_settings(of.entry)[name], _found(system, of).settings.get(name))

    return judge


def _records(system: System, of: TopicOf) -> str:
    records = _sample(system, of)
    own = [one.records[of.name] for one in flow_checks() if of.name in one.records]
    bad = own[0](system.icd, records) if own else invalid(system.icd, of.name, of.entry, records)
    return judge_records(records, bad, system.set_aside(of.name, {(one.partition, one.offset) for one, _ in bad}))


def _sample(system: System, of: TopicOf) -> list[Record]:
    _found(system, of)
    records = system.sample(of.name)
    if not records:
        raise NotShown("nothing flowed")
    return records


def invalid(icd: Icd, name: str, topic: Topic, records: list[Record]) -> list[tuple[Record, str]]:
    """Return the records that are not as their schemas say, and what is wrong with each."""
    header, message = headers_of(icd).get(name, ("", ""))
    messages = (message,) if message else (topic.message, *topic.also) if topic.message else ()
    validators = {one: Draft202012Validator(icd.messages[one]) for one in messages}
    batches = BatchReader(icd.messages[topic.message], ()) if topic.message and "arrow" in topic.encodings else None

    def wrong_with(record: Record) -> str:
        if batches is not None and is_batch(record.value):
            return _wrong_batch(batches, record)
        return _wrong(name, record, header, validators)

    return [(record, wrong) for record in records if (wrong := wrong_with(record))]


def _wrong_batch(reader: BatchReader, record: Record) -> str:
    """Say what is wrong with a columnar batch, or with the first row that the schema forbids."""
    batch = reader.read(record.value or b"", record.headers)
    if not isinstance(batch, ReadBatch):
        return f"{batch.why.path}: {batch.why.detail}"
    rejected = Joined(reader, [batch]).rejected
    row = min(rejected, default=None)
    return "" if row is None else f"row {row}: {rejected[row].path}: {rejected[row].detail}"


def headers_of(icd: Icd) -> dict[str, tuple[str, str]]:
    """Return the topics whose records are bytes that a header describes: its name, and the message that it has."""
    headers = {name: topic.header for name, topic in icd.topics.items()}
    return {name: (one.name, one.message) for name, one in headers.items() if one is not None}


def judge_records(records: list[Record], bad: list[tuple[Record, str]], set_aside: frozenset[Place]) -> str:
    """Judge what flows: whatever is not as its schema says must have been set aside as a dead letter.

    Anybody may write nonsense to a topic; a system is right that says so, and goes on.
    """
    missing = [(record, wrong) for record, wrong in bad if (record.partition, record.offset) not in set_aside]
    if missing:
        record, wrong = missing[0]
        place = f"the first one, partition {record.partition} offset {record.offset}: {wrong}"
        expected = f"{len(records)} records by the schema, or their dead letters"
        raise Mismatch(expected, f"{len(missing)} with neither; {place}")
    return f"{len(records)} records" + (f", {len(bad)} of them set aside as dead letters" if bad else "")


def _wrong(name: str, record: Record, header: str, validators: Mapping[str, Draft202012Validator]) -> str:
    """Say what is wrong with a record; nothing: it is as it should be."""
    headers = dict(record.headers)
    if name == DEAD_LETTERS:
        return "" if headers.get(_REASON) else f"expected a header {_REASON}, got {', '.join(headers) or 'none'}"
    if record.value is None or not validators:
        return ""  # it says that something is over, or nothing at all; or its bytes are anybody's
    return _invalid(headers.get(header, b"") if header else record.value, validators)


def _invalid(text: bytes, validators: Mapping[str, Draft202012Validator]) -> str:
    try:
        document = read_json(text)
    except ValueError as error:
        return f"expected JSON, got {text!r:.60} ({error})"
    name = document.get("schema", "") if isinstance(document, dict) else ""
    validator = validators.get(str(name).partition("/")[0])
    if validator is None:
        validator = next(iter(validators.values()))
    wrong = min(validator.iter_errors(document), key=lambda one: str(one.json_path), default=None)
    return f"{wrong.json_path}: {wrong.message:.150}" if wrong else ""


def _keys(system: System, of: TopicOf) -> str:
    records = _sample(system, of)
    for record in records:
        if not record.key:
            got = f"none at partition {record.partition} offset {record.offset}"
            raise Mismatch(f"a key: {of.entry.key}", got)
    return f"such as {(records[0].key or b'').decode(errors='replace')}"

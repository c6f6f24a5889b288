"""The records of a fuzz: good ones, whole, with every key that a schema has, and bad ones that are made of them.

Each record follows from the seed and its number, so that a part of a fuzz can be sent again.
"""

import hashlib
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Any, Final, NamedTuple

import fastavro
from fastavro.schema import fingerprint, to_parsing_canonical_form

from facade.kernel.bus.port import Record
from facade.kernel.resources import resource

FuzzDocument = dict[str, Any]

TABLE: Final = b"\x93NUMPY\x01\x00v\x00{'descr': '<c8', 'fortran_order': False, 'shape': (2, 4), }" + b" " * 56 + b"\n"
CONTENT: Final = TABLE.ljust(128, b" ")[:127] + b"\n" + bytes(64)
"""A table of gains, as `.npy`."""
ARRAY: Final = (
    b"\x93NUMPY\x01\x00v\x00" + b"{'descr': '<f8', 'fortran_order': False, 'shape': (), }".ljust(117) + b"\n" + bytes(8)
)
"""A quality metric: the number 0, as `.npy`."""
HOUR_US: Final = 3_600_000_000


class Good(NamedTuple):
    """One record."""

    topic: str
    key: bytes
    value: bytes
    headers: tuple[tuple[str, bytes], ...] = ()


def documents(now_us: int, number: int) -> dict[str, FuzzDocument]:
    """Return one document of each message, by its name in ``schemas/messages``.

    Parameters
    ----------
    now_us
        The time of its data [Unix us].
    number
        Tells it from others.
    """
    subarray, device = "mid-sdp/subarray/01", "mid-sdp/subarray/01"
    id = f"{now_us / 1e6:.6f}-{number:08x}_Scan"
    statistics = {"sum": 2.0, "min": 1.0, "max": 1.0, "m2": 0.0, "last": 1.0, "sketch": {"0": 2}}
    partial = {
        "epoch": 1, "window": now_us // 1_000_000 * 1_000_000, "late": False, "count": 2, "time_min": now_us,
        "time_max": now_us, "runs": [[2 * number, 2 * number + 1]], "fields": {"latency": statistics},
    }  # fmt: skip
    attachment = {"name": "image", "content_type": "image/png", "size": 4, "sha256": "0" * 64, "packet": "0/0"}
    table = {
        "table": f"fuzz-{number}", "product": "subarray/01/fuzz", "kind": "gains", "content_type": "application/x-npy",
        "size": len(CONTENT), "sha256": hashlib.sha256(CONTENT).hexdigest(), "sent_at": now_us,
    }  # fmt: skip
    account = {
        "consumed": 2, "used": 1, "late": 0, "suppressed": 0, "dead_lettered": 1, "in_flight": 0,
        "reasons": {"schema": 1}, "last_error": "expected nothing",
    }  # fmt: skip
    covered = {"log": "log", "offset_from": 2 * number, "offset_to": 2 * number + 2}
    found: dict[str, FuzzDocument] = {
        "heap": {
            "node": number % 4, "scan_id": 1, "seq": number // 4, "time": now_us, "channel_start": 0,
            "channel_count": 16, "received": 16, "lost": 0, "late": 0, "flagged_fraction": 0.1, "latency": 0.001,
        },
        "receive-buffer": {"node": number % 4, "time": now_us, "fill": 0.25, "dropped": 0},
        "batch": {
            "message": "heap/1", "rows": 2, "constants": {"node": 1}, "bases": {"time": now_us}, "producer": "node-1",
        },
        "flagging": {"subarray": 1, "scan_id": 1, "seq": number, "time": now_us, "flagged": 1, "kept": 9},
        "storage": {"time": now_us, "used": 1e12, "free": 1e12, "products": 3},
        "ingest-summary": {"worker": "aggregate-0", "partition": 0, "node": 0, "partials": [partial], **covered},
        "telemetry-summary": {
            "worker": "aggregate-0", "stream": "flagging", "partition": 0, "group": "1", "partials": [partial],
            **covered,
        },
        "rack-summary": {
            "worker": "aggregate-0", "stream": "ingest.buffers", "partition": 0, "first": 0, "last": 1, "log": "log",
            "offset_from": 2 * number, "offset_to": 2 * number + 2, "part": 0, "node": [0],
            **{name: [value] for name, value in partial.items() if name != "fields"},
            "fields": {"latency": {name: [value] for name, value in statistics.items()}},
        },
        "watermark": {
            "worker": "fuzz-0", "stream": "fuzz", "partition": 0, "partitions": 1, "log": "log", "read_to": now_us,
        },
        "log-summary": {
            "worker": "fuzz-0", "stream": "fuzz", "partition": 0, "log": "log", "offset_from": 2 * number,
            "offset_to": 2 * number + 2, "part": 0, "sequences": [{"shipper": "fuzz", "runs": [[1, 2]]}],
        },
        "processing-block": {
            "pb_id": f"pb-fuzz-{number}", "eb_id": "eb-fuzz", "subarray": 1, "kind": "batch", "state": "RUNNING",
            "sequence": 1, "time": now_us,
        },
        "reservation": {
            "id": f"fuzz/{number}", "kind": "receptors", "names": [f"SKA{number}"], "subarray": 1, "state": "GRANTED",
            "pb_id": "pb-fuzz-20261121-00001", "expires": now_us + HOUR_US, "sequence": 1, "time": now_us,
        },
        "stream-account": {
            "worker": "fuzz-0", "stream": "fuzz", "partition": 0, "time": now_us, "offset_from": 2 * number,
            "offset_to": 2 * number + 2, "high_watermark": 2 * number + 2, "log": "log", **account,
        },
        "snapshot": {
            "instance": "SdpFacade-fuzz", "topic": "fuzz", "time": now_us, "offsets": {"0": 1},
            "rebuild_from": {"0": 0}, "account": {**account, "behind": 0, "last_error_at": now_us},
            "ledger": {"text": "any"}, "readings": {device: {"obsState": ["EMPTY", now_us / 1e6, "VALID"]}},
        },
        "worker-position": {
            "group": "fuzz", "topic": "fuzz", "partition": 0, "log": "log", "next": number, "worker": "fuzz-0",
        },
        "state": {
            "device": subarray, "attribute": "scanID", "value": str(number), "time": now_us, "origin": "fuzz",
            "command": "",
        },
        "command": {
            "id": id, "device": subarray, "command": "Scan", "argument": {"scan_id": 1, "text": "any"},
            "transaction_id": f"txn-fuzz-{number}", "issued": now_us, "not_after": now_us + 1000,
            "deadline": now_us + HOUR_US, "ceiling": now_us + 2 * HOUR_US, "repeatable": False, "origin": "fuzz",
        },
        "command-ack": {
            "id": id, "device": subarray, "command": "Scan", "status": "COMPLETED", "time": now_us, "origin": "fuzz",
            "remaining": 0.0, "progress": 100, "text": "done", "result": {"text": "any"},
            "states": {"scanID": {"value": "0", "time": now_us}},
        },
        "heartbeat": {
            "component": "fuzz", "incarnation": "1", "devices": [subarray], "time": now_us, "interval": 1.0,
            "role": "controller", "stopping": False, "version": "1",
        },
        "alert": {
            "condition": "fuzzed", "source": f"fuzz/{number % 16}", "severity": "WARNING", "state": "ACTIVE",
            "text": "expected nothing, got a record", "raised_at": now_us, "sequence": number, "values": {"x": 1.0},
            "attachments": [attachment], "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        },
        "alert-action": {
            "id": str(number), "action": "COMMENT", "condition": "fuzzed", "source": f"fuzz/{number % 16}",
            "occurrence": 1, "until": 0, "operator": "ann", "comment": "seen", "time": now_us, "origin": "fuzz",
        },
        "alert-state": {
            "condition": "fuzzed", "source": "fuzz/99", "state": "UNACK", "through": 0, "occurrence": 1,
            "severity": "WARNING", "text": "expected nothing", "raised_at": now_us, "changed_at": now_us,
            "source_raised_at": now_us, "source_sequence": 1, "raised": 1, "pending": "", "pending_at": 0,
            "pending_occurrence": 0, "shelved_until": 0, "out_of_service": False, "action": "COMMENT",
            "operator": "ann", "comment": "seen", "acted_at": now_us, "acknowledged_at": 0, "acted": [0],
            "actions": [{"action": "COMMENT", "operator": "ann", "comment": "seen", "time": now_us}],
        },
        "table-segment": {**table, "index": 0, "count": 1, "start": 0},
        "table": {
            # Of a partition and a log that are not there: else it says that records of ours were dealt with.
            **table, "state": "COMPLETE", "received": len(CONTENT), "time": now_us, "partition": 99, "first_offset": 0,
            "last_offset": 0, "log": "fuzz", "url": "file:///nowhere", "reason": "",
            "summary": {"kind": "gains", "antennas": ["0"]},
        },
        "metric": {
            "subarray": 1, "metric": "flaggedFraction", "time": now_us, "encoding": "npy", "shape": [],
            "dtype": "float64", "unit": "", "scan_id": 1, "source": "fuzz", "sequence": number,
        },
    }  # fmt: skip
    return {name: {"schema": f"{name}/1", **document} for name, document in found.items()}


def completed(document: FuzzDocument, schema: Mapping[str, Any]) -> FuzzDocument:
    """Return a document with all keys of its schema, also those that are newer than the documents here."""
    more = {name: one for name, one in schema["properties"].items() if name not in document}
    return {**document, **{name: example(one) for name, one in more.items()}}


def example(schema: Mapping[str, Any]) -> Any:
    if "enum" in schema:
        return schema["enum"][0]
    match schema["type"]:
        case "object":
            return {name: example(one) for name, one in schema.get("properties", {}).items()}
        case "array":
            return [example(schema["items"])] * schema.get("minItems", 1)
        case "boolean":
            return False
        case "integer" | "number":
            return schema.get("minimum", 0)
        case _:
            return "any"


_KEYS: Final[Mapping[str, Callable[[FuzzDocument], str]]] = {
    "heap": lambda one: str(one["node"]),
    "receive-buffer": lambda one: str(one["node"]),
    "flagging": lambda one: str(one["subarray"]),
    "ingest-summary": lambda one: str(one["node"]),
    "telemetry-summary": lambda one: f"{one['stream']}/{one['group']}",
    "rack-summary": lambda one: f"{one['first']}-{one['last']}",
    "watermark": lambda one: f"watermark/{one['stream']}/{one['partition']}",
    "stream-account": lambda one: f"{one['stream']}/{one['partition']}",
    "snapshot": lambda one: f"{one['instance']}/{one['topic']}",
    "worker-position": lambda one: f"{one['group']}/{one['topic']}/{one['partition']}",
    "state": lambda one: f"{one['device']}/{one['attribute']}",
    "command": lambda one: str(one["device"]),
    "command-ack": lambda one: str(one["device"]),
    "heartbeat": lambda one: str(one["component"]),
    "alert": lambda one: str(one["condition"]),
    "alert-action": lambda one: str(one["condition"]),
    "alert-state": lambda one: f"{one['condition']}@{one['source']}",
    "table": lambda one: str(one["product"]),
    "table-segment": lambda one: str(one["product"]),
    "metric": lambda one: f"subarray/{one['subarray']:02d}/{one['metric']}",
    "log-summary": lambda one: f"{one['stream']}/{one['partition']}",
    "mirror-rule": lambda one: str(one["rule"]),
    "processing-block": lambda one: str(one["pb_id"]),
    "reservation": lambda one: str(one["id"]),
}


def _no_key(document: FuzzDocument) -> str:
    return ""


_IN_HEADERS: Final = {
    "metric": ("metric", ARRAY),
    "table-segment": ("segment", CONTENT),
    "batch": ("batch", b"\xff\xff\xff\xff"),  # such bytes are taken for Arrow
}


def record(topic: str, message: str, document: FuzzDocument) -> Good:
    text = json.dumps(document, ensure_ascii=False).encode(errors="surrogatepass")
    key = _KEYS.get(message, _no_key)(document).encode(errors="surrogatepass")
    if message in _IN_HEADERS:
        header, content = _IN_HEADERS[message]
        return Good(topic, key, content, ((header, text),))
    return Good(topic, key, text)


_write: Any = fastavro.schemaless_writer
_PACKET: Final = fastavro.parse_schema(json.loads(resource("schemas", "messages", "alert-packet.avsc").read_bytes()))
_PACKET_HEAD: Final = b"\xc3\x01" + bytes.fromhex(fingerprint(to_parsing_canonical_form(_PACKET), "CRC-64-AVRO"))


def packet(alert: FuzzDocument) -> Good:
    """Return an alert as an Avro packet with one attachment."""
    out = io.BytesIO(_PACKET_HEAD)
    out.seek(0, io.SEEK_END)
    attachments = [{"name": "image", "content_type": "image/png", "content": bytes(1000)}]
    _write(out, _PACKET, {**alert, "attachments": attachments})
    return Good("alert-packets", str(alert["source"]).encode(errors="surrogatepass"), out.getvalue())


LEVELS: Final = 100_000
LARGEST: Final = 10_000_000
"""Of a value [bytes]."""

_NUMBERS: Final = (
    *("0", "-0", "-1", "1", "0.5", "-0.0", "2147483648", "9007199254740991", "9007199254740992", "9223372036854775807"),
    *("9223372036854775808", "18446744073709551616", "-9223372036854775809", "1e308", "1e400", "-1e400", "1e-400"),
    *("NaN", "Infinity", "-Infinity", "1" + "0" * 400, "253402300800000000", "-62135596800000001", "1.0", "1E2"),
)
_OTHERS: Final = (
    "null",
    "true",
    "[]",
    "{}",
    '""',
    '"x"',
    "[[[]]]",
    '{"a":{"a":1}}',
    '"\\ud800"',
    '"\\u0000"',
    "nul",
    "",
)
_TEXTS: Final = (
    *("\x1b[2J\x1b[31m", "\x00", "\x9b31m", "a\nb", "\u202e", "\u2028", "[red]", "[/]", "{}", "%s%n", "../../x"),
    *("a" * 201, "é" * 2001, "\U0001f600" * 100, "'; --", "ﷺ" * 50, "\x7f\x80\x85"),
)
_MARK: Final = "@raw@"


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    for name, entry in value.items() if isinstance(value, dict) else enumerate(value):
        yield (*path, name)
        if isinstance(entry, dict | list):
            yield from places(entry, (*path, name))


def mutated(chance: Random, document: FuzzDocument) -> bytes | None:
    """Return the wire form of a document with something wrong in it; sometimes it is right all the same."""
    made: bytes | None = chance.choices(_KINDS, _WEIGHTS)[0](chance, document)
    return made


def _put(chance: Random, document: FuzzDocument, raw: str) -> bytes:
    """Return a document with a piece of JSON, or of something else, at a random place."""
    place = chance.choice(list(places(document)))
    text = json.dumps(_with(document, place, _MARK), ensure_ascii=chance.random() < 0.5)
    return text.replace(f'"{_MARK}"', raw).encode(errors="surrogatepass")


def _with(value: Any, path: tuple[Any, ...], entry: Any) -> Any:
    if not path:
        return entry
    made = value.copy()
    made[path[0]] = _with(value[path[0]], path[1:], entry)
    return made


def _deep(chance: Random, document: FuzzDocument) -> bytes:
    opening, closing = chance.choice([("[", "]"), ('{"a":', "}")])
    return _put(chance, document, opening * LEVELS + "1" + closing * LEVELS)


def _large(chance: Random, document: FuzzDocument) -> bytes:
    size = chance.choice([100_000, 1_100_000, LARGEST])
    return _put(chance, document, chance.choice([f'"{"x" * size}"', f"[{'0,' * (size // 2)}0]"]))


def _without(chance: Random, document: FuzzDocument) -> bytes:
    gone = chance.choice(list(document))
    return json.dumps({name: entry for name, entry in document.items() if name != gone}).encode()


def _twice(chance: Random, document: FuzzDocument) -> bytes:
    name = chance.choice(list(document))
    return (
        b"{"
        + json.dumps({name: chance.choice([0, "x", None])})[1:-1].encode()
        + b","
        + json.dumps(document)[1:].encode()
    )


def flipped(chance: Random, content: bytes) -> bytes:
    """Return bytes of which some are others, or of which some are gone or there twice."""
    made = bytearray(content)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(made) + 1)
        made[at : at + chance.choice([0, 1, 1, 8])] = chance.randbytes(chance.choice([0, 1, 1, 4]))
    return bytes(made)


def _cut(chance: Random, document: FuzzDocument) -> bytes:
    text = json.dumps(document).encode()
    return text[: chance.randrange(len(text))]


_Mutation = Callable[[Random, FuzzDocument], bytes | None]
_WEIGHTED: Final[Sequence[tuple[float, _Mutation]]] = (
    (30, lambda chance, one: _put(chance, one, chance.choice(_NUMBERS))),
    (15, lambda chance, one: _put(chance, one, chance.choice(_OTHERS))),
    (20, lambda chance, one: _put(chance, one, json.dumps(chance.choice(_TEXTS), ensure_ascii=chance.random() < 0.5))),
    (2, lambda chance, one: _put(chance, one, '"\ud83d"')),  # half of a character, as three bytes that are no UTF-8
    (0.05, _deep),
    (0.02, _large),
    (5, _without),
    (3, lambda chance, one: json.dumps({**one, chance.choice([*_TEXTS, "unknown"]): 1}).encode()),
    (3, _twice),
    (3, lambda chance, one: json.dumps({**one, "schema": chance.choice(["heap/2", "", "alert/1", 1])}).encode()),
    (10, lambda chance, one: flipped(chance, json.dumps(one).encode())),
    (5, _cut),
    (2, lambda chance, one: chance.randbytes(chance.choice([0, 1, 10, 1000]))),
    (1, lambda chance, one: None),
)
_WEIGHTS, _KINDS = zip(*_WEIGHTED, strict=True)


def spoilt(chance: Random, record: Good, document: FuzzDocument) -> tuple[Good, bytes | None]:
    """Return a record with something wrong in it, and its value.

    If a header describes the record, then the header is wrong, missing or doubled, or the bytes are wrong.
    """
    key = record.key if chance.random() < 0.9 else chance.choice([b"", b"\xff", b"0", chance.randbytes(8)])
    if not record.headers:
        return record._replace(key=key), mutated(chance, document)
    ((name, text),) = record.headers
    wrong = mutated(chance, document) or b""
    if chance.random() < 0.4:
        return record._replace(key=key), flipped(chance, record.value)
    headers = chance.choice([((name, wrong),), ((name, wrong),), (), ((name, text), (name, wrong)), (("x", wrong),)])
    return record._replace(key=key, headers=headers), record.value if chance.random() < 0.9 else None


MARK: Final = "fuzz.good"
"""Header of a good record; a dead letter that has it is a finding."""
GOOD_GROUP: Final = 3
"""Ingest node of which only good records come."""
GOOD_SUBARRAY: Final = 2

SHARES: Final = {
    ("ingest.heaps", "heap"): 37, ("ingest.buffers", "receive-buffer"): 10, ("flagging", "flagging"): 5,
    ("storage", "storage"): 3, ("alerts", "alert"): 5, ("alerts", "alert-action"): 2, ("alert-packets", "alert"): 5,
    ("calibration", "table-segment"): 5, ("quality", "metric"): 5, ("commands", "command"): 3,
    ("command-acks", "command-ack"): 3, ("state", "state"): 3, ("heartbeats", "heartbeat"): 2, ("tables", "table"): 2,
    ("alert-state", "alert-state"): 2, ("snapshots", "snapshot"): 2, ("accounts", "stream-account"): 1,
    ("positions", "worker-position"): 1,
    ("ingest.summary", "ingest-summary"): 1, ("telemetry.summary", "telemetry-summary"): 1,
    ("ingest.summary", "watermark"): 1, ("ingest.summary", "rack-summary"): 1, ("telemetry.summary", "rack-summary"): 1,
}  # fmt: skip
"""Of each topic and message [percent]."""
INTERNAL: Final = (
    *("commands", "command-acks", "state", "heartbeats", "tables", "alert-state", "snapshots", "accounts"),
    *("positions", "ingest.summary", "telemetry.summary"),
)
"""Topics on which records that are good by their schema would be lies about the system: only bad ones are sent."""
_GOOD_SHARE = 0.3
_OF_GOOD_GROUP = b'"node": %d' % GOOD_GROUP
_ROWS, _ROW_WEIGHTS = list(SHARES), list(SHARES.values())


class Numbered(NamedTuple):
    """One record of a fuzz."""

    record: Record
    is_good: bool
    message: str


def numbered(seed: int, number: int, now_us: int, partitions: dict[str, int], counts: dict[str, int]) -> Numbered:
    """Return a record; it follows from the seed, its number and the time.

    Parameters
    ----------
    counts
        Good records so far by message, which this one is added to: their sequences have no holes.
    """
    chance = Random(f"{seed}/{number}")  # noqa: S311 - to be had again
    topic, message = chance.choices(_ROWS, _ROW_WEIGHTS)[0]
    if topic not in INTERNAL and message != "alert-action" and chance.random() < _GOOD_SHARE:
        counts[message] = counts.get(message, -1) + 1
        return Numbered(_good(topic, message, counts[message], now_us), True, message)
    document = documents(now_us, number)[message]
    if "node" in document:
        document["node"] = chance.randrange(GOOD_GROUP)
    if topic == "alert-packets":
        made = packet({**document, "attachments": []})
        return Numbered(_record(made, flipped(chance, made.value), chance, partitions), False, message)
    made, value = spoilt(chance, record(topic, message, document), document)
    if _OF_GOOD_GROUP in (value or b""):
        value = b""  # a byte that became another one
    return Numbered(_record(made, value, chance, partitions), False, message)


def _good(topic: str, message: str, count: int, now_us: int) -> Record:
    document = documents(now_us, count)[message]
    if "node" in document:
        document |= {"node": GOOD_GROUP} | ({"seq": count} if "seq" in document else {})
    if "subarray" in document:
        document["subarray"] = GOOD_SUBARRAY
    if message == "table-segment":
        document |= {"product": f"subarray/{GOOD_SUBARRAY:02d}/good", "table": f"good-{count}"}
    if message == "alert":
        document |= {"condition": "fuzzGood", "source": f"good/{topic}/{count % 8}"}
    made = packet({**document, "attachments": []}) if topic == "alert-packets" else record(topic, message, document)
    headers = (*made.headers, (MARK, str(count).encode()))
    return Record(topic=topic, key=made.key, value=made.value, headers=headers)


def _record(made: Good, value: bytes | None, chance: Random, partitions: dict[str, int]) -> Record:
    partition = chance.randrange(partitions[made.topic]) if chance.random() < 0.2 else -1
    return Record(topic=made.topic, key=made.key, value=value, headers=made.headers, partition=partition)

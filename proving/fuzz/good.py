"""Good records of each topic, by hand and whole: every key that a schema has is there."""

import hashlib
import io
import json
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import fastavro
from fastavro.schema import fingerprint, to_parsing_canonical_form

from facade.resources import resource

Document = dict[str, Any]

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


def documents(now_us: int, number: int) -> dict[str, Document]:
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
    found: dict[str, Document] = {
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


def completed(document: Document, schema: Mapping[str, Any]) -> Document:
    """Return a document with what its schema has beyond it: keys that are newer than the documents here."""
    more = {name: one for name, one in schema["properties"].items() if name not in document}
    return {**document, **{name: example(one) for name, one in more.items()}}


def example(schema: Mapping[str, Any]) -> Any:
    """Return a simple value that a schema allows."""
    if "enum" in schema:
        return schema["enum"][0]
    match schema["type"]:
        case "object":
            return {name: example(one) for name, one in schema.get("properties", {}).items()}
        case "array":
            return [example(schema["items"])]
        case "boolean":
            return False
        case "integer" | "number":
            return schema.get("minimum", 0)
        case _:
            return "any"


_KEYS: Final[Mapping[str, Callable[[Document], str]]] = {
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
}


def _no_key(document: Document) -> str:
    return ""


_IN_HEADERS: Final = {
    "metric": ("metric", ARRAY),
    "table-segment": ("segment", CONTENT),
    "batch": ("batch", b"\xff\xff\xff\xff"),  # such bytes are taken for Arrow
}


def record(topic: str, message: str, document: Document) -> Good:
    """Return the record of a document."""
    text = json.dumps(document, ensure_ascii=False).encode(errors="surrogatepass")
    key = _KEYS.get(message, _no_key)(document).encode(errors="surrogatepass")
    if message in _IN_HEADERS:
        header, content = _IN_HEADERS[message]
        return Good(topic, key, content, ((header, text),))
    return Good(topic, key, text)


_write: Any = fastavro.schemaless_writer
_PACKET: Final = fastavro.parse_schema(json.loads(resource("schemas", "messages", "alert-packet.avsc").read_bytes()))
_PACKET_HEAD: Final = b"\xc3\x01" + bytes.fromhex(fingerprint(to_parsing_canonical_form(_PACKET), "CRC-64-AVRO"))


def packet(alert: Document) -> Good:
    """Return an alert as an Avro packet with one attachment."""
    out = io.BytesIO(_PACKET_HEAD)
    out.seek(0, io.SEEK_END)
    attachments = [{"name": "image", "content_type": "image/png", "content": bytes(1000)}]
    _write(out, _PACKET, {**alert, "attachments": attachments})
    return Good("alert-packets", str(alert["source"]).encode(errors="surrogatepass"), out.getvalue())

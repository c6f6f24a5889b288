"""Who takes part in the bus, and what they are told: the words of the AsyncAPI document that are not in the ICD."""

from typing import Any, Literal, NamedTuple


class Part(NamedTuple):
    """One operation: what somebody sends to a topic, or receives from it."""

    who: str
    """Role, in lower camel case."""
    action: Literal["send", "receive"]
    topic: str
    what: str
    """What it is for, in one sentence or two."""
    messages: tuple[str, ...] = ()
    """Those of the topic that are meant; none: all."""
    group: str = ""
    """Consumer group, without the deployment's prefix."""
    reply: str = ""
    """Topic on which the answer to what is sent comes."""


ROLES: dict[str, tuple[str, str]] = {
    "ingestNode": ("SDP", "A process that receives visibilities from the correlator."),
    "controller": ("SDP", "A process that executes the commands of some Tango devices and reports their state."),
    "alertSource": ("SDP", "Anything that has to tell an operator something."),
    "calibrationPipeline": ("SDP", "A process that makes calibration tables."),
    "qualityPipeline": ("SDP", "A process that computes quality metrics."),
    "aggregateWorker": ("facade", "Reduces heap notifications to one record per node and second."),
    "alertIntake": ("facade", "Takes alert packets apart: the alert goes on, the attachments stay."),
    "tableAssembler": ("facade", "Puts tables together and announces each once it is whole."),
    "deviceServer": ("facade", "Tango device server: shows to Tango what is on the bus, and takes commands from TM."),
}
"""By role: on which side it is, and what it does."""

PARTS: tuple[Part, ...] = (
    Part("ingestNode", "send", "ingest.heaps", "Tell what became of each heap."),
    Part("aggregateWorker", "receive", "ingest.heaps", "Take heap notifications to reduce them.", group="aggregate"),
    Part("aggregateWorker", "send", "ingest.summary", "Write the partial aggregates of a transaction."),
    Part("deviceServer", "receive", "ingest.summary", "Merge the partial aggregates (read committed)."),
    Part("aggregateWorker", "send", "accounts", "Account for the records of a transaction."),
    Part("alertIntake", "send", "accounts", "Account for the packets of a transaction."),
    Part("tableAssembler", "send", "accounts", "Account for the segments of a transaction."),
    Part("deviceServer", "receive", "accounts", "Show what became of the records of each stream (read committed)."),
    Part("deviceServer", "send", "snapshots", "Write down what is merged, for the next start."),
    Part("deviceServer", "receive", "snapshots", "Begin where the last life ended."),
    Part("controller", "send", "state", "Report each change of a device's state, and the state after each command."),
    Part("controller", "receive", "state", "Know what was last reported: after a restart it is the only memory of it."),
    Part("deviceServer", "send", "state", "Keep what operators set on devices (adminMode)."),
    Part("deviceServer", "receive", "state", "Show the state of the devices."),
    Part("deviceServer", "send", "commands", "Hand a command of TM over.", reply="command-acks"),
    Part(
        "controller",
        "receive",
        "commands",
        "Execute the commands of your devices; leave those of other devices alone. Commits are made by hand, after the "
        "acknowledgement. The group is your own to name, with the deployment's prefix before it.",
        reply="command-acks",
    ),
    Part("deviceServer", "receive", "commands", "Answer GetCommand and GetCommandHistory, also after a restart."),
    Part("controller", "send", "command-acks", "Say what becomes of each command: ACCEPTED first, the outcome last."),
    Part("controller", "receive", "command-acks", "Know what has been executed already; read to its end at the start."),
    Part("deviceServer", "send", "command-acks", "Give a command up: TIMED_OUT, UNDELIVERED."),
    Part("deviceServer", "receive", "command-acks", "Show how each command goes and ends."),
    Part("controller", "send", "heartbeats", "Say each second that you live."),
    Part("deviceServer", "send", "heartbeats", "Say that commands are taken here."),
    Part("deviceServer", "receive", "heartbeats", "See controllers come and go, and other servers of the same name."),
    Part("alertSource", "send", "alerts", "Raise and clear alerts.", messages=("alert",)),
    Part("alertIntake", "send", "alerts", "Raise the alert of a packet.", messages=("alert",)),
    Part("deviceServer", "send", "alerts", "Write down what operators do, and raise the facade's own alerts."),
    Part("deviceServer", "receive", "alerts", "Send each alert as an event, and keep the state of the alarms."),
    Part("alertSource", "send", "alert-packets", "Raise and clear alerts that have attachments."),
    Part("alertIntake", "receive", "alert-packets", "Take packets apart.", group="alerts-intake"),
    Part("deviceServer", "send", "alert-state", "Keep the state of each alarm for the next start."),
    Part("deviceServer", "receive", "alert-state", "Know all alarms after a restart."),
    Part("calibrationPipeline", "send", "calibration", "Send a table in segments, or a reference to it."),
    Part("tableAssembler", "receive", "calibration", "Put tables together.", group="tables-assemble"),
    Part("tableAssembler", "send", "tables", "Announce what is complete, under way or has failed."),
    Part("deviceServer", "receive", "tables", "Show the newest table of each product."),
    Part("qualityPipeline", "send", "quality", "Send the newest array of each metric."),
    Part("deviceServer", "receive", "quality", "Show the metrics of each subarray."),
    Part("aggregateWorker", "send", "dead-letters", "Set aside what cannot be used."),
    Part("alertIntake", "send", "dead-letters", "Set aside what cannot be used."),
    Part("tableAssembler", "send", "dead-letters", "Set aside what cannot be used."),
    Part("controller", "send", "dead-letters", "Set aside what cannot be used, and go on."),
    Part("deviceServer", "send", "dead-letters", "Set aside what cannot be used."),
)
"""Who sends what and who receives it. Each topic of the ICD has somebody who sends."""

QUALITY_OF_SERVICE: dict[str, str] = {
    "bulk": "Bulk: many or large records. It may wait while others of its kind pass; it never delays another class.",
    "telemetry": "Telemetry: only the newest matters to those who watch, and what is in between may be merged.",
    "state": "State: little, but it must be right and survive any restart.",
    "command": "Command: every record is on all in-sync replicas before anybody relies on it; order holds per key.",
    "alert": "Alert: every record is kept, numbered and shown; none is merged with another one.",
}
"""What the classes mean. Each has its own topics, consumers and processes, so that none can delay another."""

DEAD_LETTER_HEADERS: dict[str, str] = {
    "dl.topic": "Topic on which the record was.",
    "dl.partition": "Its partition there, as decimal text.",
    "dl.offset": "Its offset there, as decimal text.",
    "dl.timestamp_us": "Its Kafka timestamp as Unix time [us], as decimal text.",
    "dl.reason": "Why it could not be used: one word that can be counted, such as schema.",
    "dl.path": "JSON path of what is wrong in it; empty when the whole record is.",
    "dl.detail": "What was expected and what was found, for people.",
    "dl.by": "Who could not use it.",
}

INTRODUCTION = """\
How the parts of the SDP and the Tango facade talk over Kafka. Nothing here needs Tango: whoever writes these topics
and reads them takes part, in any language.

**What you write, and what you read**

- You have an ingest node: write `ingest.heaps`.
- You execute commands: read `commands`, `command-acks` and `state`; write `command-acks`, `state` and `heartbeats`.
- You have something to tell an operator: write `alerts`, or `alert-packets` if images belong to it.
- You make calibration tables: write `calibration`; what became of them is on `tables`.
- You compute quality metrics: write `quality`.
- Everything else is the facade's own. You may read it, and should not write it.
- Your records that could not be used are on `dead-letters`, whole, with the reason in headers. Look there first.

The operations say it for each part: their tags name the side (SDP or facade) and the role. For how to do it well, such
as what a controller owes after a crash, see docs/how-to.

**Rules that hold for all topics**

- The name of a topic is the deployment's prefix followed by its name here: with the prefix `local.`, `local.commands`.
  Consumer groups and transactional ids have the prefix as well. Topics are made by `sdp-facade topics create`, never by
  writing to them.
- A value is one JSON object in UTF-8, without a schema registry and without bytes before it. Its field `schema` is the
  name and the major version of the message, such as `heap/1`. Unknown fields are refused. Exceptions: `alert-packets`
  (Avro), `calibration`, `quality` and `dead-letters` (bytes as they are, described in headers).
- A header that is described as an object holds the JSON text of it.
- Times are integers: microseconds since the Unix epoch, UTC (Kafka's own timestamps are in milliseconds). Durations are
  in seconds. The unit of a field is in `x-unit`.
- Keys are text in UTF-8. What has the same key is on one partition and keeps its order; on compacted topics the newest
  record of a key is the one that holds. Use the partitioner of Java's client (`murmur2`; in librdkafka
  `partitioner=murmur2_random`).
- Write with `acks=all` and `enable.idempotence=true`, and wait for the answer before you rely on it.
- Read with `isolation.level=read_committed`.
- You may compress. `max.message.bytes` then holds for a batch as it comes, and for the same uncompressed.
- Whatever is not as described becomes a dead letter and harms none of its neighbours.

The schemas are those of schemas/messages, in JSON Schema 2020-12; as they stand here they mean the same in draft-07.
What Tango shows of it all, and the rules for commands and alarms, is in schemas/icd."""

EXAMPLES: dict[str, dict[str, Any]] = {
    "heap": {
        "schema": "heap/1",
        "node": 7,
        "scan_id": 17,
        "seq": 41,
        "time": 1795276800000000,
        "channel_start": 0,
        "channel_count": 128,
        "received": 4096,
        "lost": 0,
        "late": 0,
        "flagged_fraction": 0.02,
        "latency": 0.31,
    },
    "command": {
        "schema": "command/1",
        "id": "1795276800.000000_117520013_EndScan",
        "device": "mid-sdp/subarray/01",
        "command": "EndScan",
        "argument": None,
        "transaction_id": "txn-local-20261121-000000017",
        "issued": 1795276800000000,
        "not_after": 1795276805000000,
        "deadline": 1795276810000000,
        "ceiling": 1795276860000000,
        "repeatable": True,
        "origin": "control/1",
    },
    "command-ack": {
        "schema": "command-ack/1",
        "id": "1795276800.000000_117520013_EndScan",
        "device": "mid-sdp/subarray/01",
        "command": "EndScan",
        "status": "COMPLETED",
        "time": 1795276801000000,
        "origin": "my-subarrays",
    },
    "state": {
        "schema": "state/1",
        "device": "mid-sdp/subarray/01",
        "attribute": "obsState",
        "value": "READY",
        "time": 1795276801000000,
        "origin": "my-subarrays",
        "command": "1795276800.000000_117520013_EndScan",
    },
    "heartbeat": {
        "schema": "heartbeat/1",
        "component": "my-subarrays",
        "incarnation": "start-20261121-1",
        "devices": ["mid-sdp/subarray/01", "mid-sdp/subarray/02"],
        "time": 1795276801000000,
        "interval": 1.0,
        "role": "controller",
    },
    "alert": {
        "schema": "alert/1",
        "condition": "receiveOverrun",
        "source": "receive/0007",
        "severity": "ALARM",
        "state": "ACTIVE",
        "text": "expected no drops, got 312 heaps/s",
        "raised_at": 1795276800000000,
        "sequence": 41,
        "values": {"dropped": 312.0},
    },
}
"""One record of each message that SDP's side writes or must understand, as its JSON."""

HEADER_EXAMPLES: dict[str, dict[str, Any]] = {
    "table-segment": {
        "schema": "table-segment/1",
        "table": "cal-7",
        "product": "subarray/01/gains",
        "kind": "gains",
        "content_type": "application/vnd.apache.arrow.stream",
        "index": 0,
        "count": 20,
        "start": 0,
        "size": 19982680,
        "sha256": "78f8" * 16,
        "sent_at": 1795282430808302,
    },
    "metric": {
        "schema": "metric/1",
        "subarray": 1,
        "metric": "noiseAntenna",
        "time": 1795282430808302,
        "encoding": "npy",
        "shape": [197],
        "dtype": "float64",
        "unit": "Jy",
    },
}
"""The same for headers that are JSON."""

"""What those who take part in the bus are told: the words of the AsyncAPI document that are not in the ICD."""

from typing import Any, Literal, NamedTuple

from facade.errors import IcdError

Side = Literal["send", "receive"]


class Part(NamedTuple):
    """What it means to send to a topic, or to receive from it; who does so says the ICD."""

    action: Side
    topic: str
    what: str
    """What it is for, in one sentence or two."""
    who: tuple[str, ...] = ()
    """Roles of which it is said; none: all that no other entry names."""
    messages: tuple[str, ...] = ()
    """Those of the topic that are meant; none: all."""
    group: str = ""
    """Consumer group, without the deployment's prefix."""
    reply: str = ""
    """Topic on which the answer to what is sent comes."""


PARTS: tuple[Part, ...] = (
    Part("send", "ingest.heaps", "Tell what became of each heap."),
    Part("receive", "ingest.heaps", "Take heap notifications to reduce them.", group="aggregate"),
    Part("send", "ingest.summary", "Write the partial aggregates of a transaction."),
    Part("receive", "ingest.summary", "Merge the partial aggregates (read committed)."),
    Part("send", "accounts", "Account for the records that were taken, in the same transaction where there is one."),
    Part("receive", "accounts", "Show what became of the records of each stream (read committed)."),
    Part("send", "snapshots", "Write down what is merged, for the next start."),
    Part("receive", "snapshots", "Begin where the last life ended."),
    Part(
        "receive",
        "snapshots",
        "Begin where the last life ended, and show what became of the records that each device server reads.",
        who=("control",),
    ),
    Part(
        "send",
        "state",
        "Report each change of a device's state, and the state after each command.",
        who=("controller",),
    ),
    Part(
        "receive",
        "state",
        "Know what was last reported: after a restart it is the only memory of it.",
        who=("controller",),
    ),
    Part("send", "state", "Keep what operators set on devices (adminMode)."),
    Part("receive", "state", "Show the state of the devices."),
    Part("send", "commands", "Hand a command of TM over.", reply="command-acks"),
    Part(
        "receive",
        "commands",
        "Execute the commands of your devices; leave those of other devices alone. Commits are made by hand, after the "
        "acknowledgement. The group is your own to name, with the deployment's prefix before it.",
        who=("controller",),
        reply="command-acks",
    ),
    Part("receive", "commands", "Answer GetCommand and GetCommandHistory, also after a restart."),
    Part(
        "send",
        "command-acks",
        "Say what becomes of each command: ACCEPTED first, the outcome last.",
        who=("controller",),
    ),
    Part(
        "receive",
        "command-acks",
        "Know what has been executed already; read to its end at the start.",
        who=("controller",),
    ),
    Part("send", "command-acks", "Give a command up: TIMED_OUT, UNDELIVERED."),
    Part("receive", "command-acks", "Show how each command goes and ends."),
    Part("send", "heartbeats", "Say each second that you live.", who=("controller",)),
    Part("send", "heartbeats", "Say that commands are taken here."),
    Part("receive", "heartbeats", "See controllers come and go, and other servers of the same name."),
    Part("send", "alerts", "Raise and clear alerts.", who=("alert-source",), messages=("alert",)),
    Part("send", "alerts", "Raise the alert of a packet.", who=("alerts-intake",), messages=("alert",)),
    Part("send", "alerts", "Write down what operators do about alerts.", who=("alerts",), messages=("alert-action",)),
    Part("send", "alerts", "Raise and clear the facade's own alerts.", messages=("alert",)),
    Part("receive", "alerts", "Send each alert as an event, and keep the state of the alarms."),
    Part("send", "alert-packets", "Raise and clear alerts that have attachments."),
    Part("receive", "alert-packets", "Take packets apart.", who=("alerts-intake",), group="alerts-intake"),
    Part("receive", "alert-packets", "Fetch the attachments of an alert."),
    Part("send", "alert-state", "Keep the state of each alarm for the next start."),
    Part("receive", "alert-state", "Know all alarms after a restart.", who=("alerts",)),
    Part("receive", "alert-state", "Know after a restart which alerts of your own are raised."),
    Part("send", "calibration", "Send a table in segments, or a reference to it."),
    Part("receive", "calibration", "Put tables together.", who=("tables-assemble",), group="tables-assemble"),
    Part("receive", "calibration", "Give the bytes of a table that is announced as complete."),
    Part("send", "tables", "Announce what is complete, under way or has failed."),
    Part("receive", "tables", "Know after a restart what has been announced.", who=("tables-assemble",)),
    Part("receive", "tables", "Learn what became of your tables.", who=("calibration-pipeline",)),
    Part("receive", "tables", "Show the newest table of each product."),
    Part("send", "quality", "Send the newest array of each metric."),
    Part("receive", "quality", "Show the metrics of each subarray."),
    Part("send", "dead-letters", "Set aside what cannot be used, and go on."),
    Part("receive", "dead-letters", "Look up what could not be used, and why."),
)
"""What is said of each end of each topic of the ICD."""


def part_of(role: str, action: Side, topic: str) -> Part:
    """Return what is said of a role at a topic.

    Raises
    ------
    IcdError
        Nothing is.
    """
    found = [part for part in PARTS if (part.action, part.topic) == (action, topic)]
    for part in found:
        if role in part.who:
            return part
    for part in found:
        if not part.who:
            return part
    what = f"expected what it means for {role} to {action}, got nothing"
    raise IcdError(f"topics[{topic}]: {what}; add it to facade.exports.asyncapi_parts")


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

The operations say it for each role: their tags name the side (SDP or facade) and the role, and whoever gives rights can
give each role those of its operations. For how to do it well, such as what a controller owes after a crash, see
docs/how-to.

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

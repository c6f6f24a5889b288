"""The words of the AsyncAPI document that are not in the ICD: general ones, and those of each flow."""

from collections.abc import Iterator

from facade.errors import IcdError
from facade.icd.model import Icd
from facade.manifest import Manifest, Part, Side, Words, load, manifests

_DEFAULT: dict[Side, str] = {"send": "Write records.", "receive": "Read records."}

QUALITY_OF_SERVICE: dict[str, str] = {
    "bulk": "Bulk: many or large records. It may wait while others of its kind pass; it never delays another class.",
    "log": "Log: whatever the nodes write about themselves. Brokers slow down who writes too much of it.",
    "telemetry": "Telemetry: only the newest matters to those who watch, and what is in between may be merged.",
    "state": "State: little, but it must be right and survive any restart.",
    "command": "Command: every record is on all in-sync replicas before anybody relies on it; order holds per key.",
    "alert": "Alert: every record is kept, numbered and shown; none is merged with another one.",
}
"""What the classes mean. Each has its own topics, consumers and processes, so that none can delay another."""

_INTRODUCTION = """\
How the parts of the SDP and the Tango facade talk over Kafka. Nothing here needs Tango: whoever writes these topics
and reads them takes part, in any language.

**What you write, and what you read**

{participants}
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
  name and the major version of the message, such as `heap/1`. Unknown fields are refused. Exceptions are the bytes on
  {others}: what they are is said of each.
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


def words_of(icd: Icd) -> tuple[Words, ...]:
    """Return the words of the flows whose topics an interface has."""
    return tuple(load(one.words) for one in _flows(icd) if one.words is not None)


def introduction(icd: Icd) -> str:
    """Return what everybody has to know."""
    participants = (f"- {line}" for words in words_of(icd) for line in words.introduction)
    *others, last = (f"`{name}`" for name, topic in icd.topics.items() if topic.message is None)
    listed = f"{', '.join(others)} and {last}" if others else last
    return _INTRODUCTION.format(participants="\n".join(participants), others=listed)


def part_of(icd: Icd, role: str, action: Side, topic: str) -> Part:
    """Return what is said of a role at a topic.

    Raises
    ------
    IcdError
        No flow has the topic.
    """
    found = [one for words in words_of(icd) for one in words.parts if (one.action, one.topic) == (action, topic)]
    for part in [*(one for one in found if role in one.who), *(one for one in found if not one.who)]:
        return part
    if icd.topics[topic].window is None and not any(topic in one.topics for one in _flows(icd)):
        raise IcdError(f"topics[{topic}]: expected a topic of some flow's manifest, got one that no flow has")
    return Part(action, topic, _DEFAULT[action])


def group_of(role: str, topic: str) -> str:
    """Return the consumer group in which a role takes the records of a topic; empty: none."""
    workers = (worker for one in manifests() for worker in one.workers if worker.name == role)
    return next((worker.group for worker in workers if not worker.topics or topic in worker.topics), "")


def _flows(icd: Icd) -> Iterator[Manifest]:
    return (one for one in manifests() if one.topics.keys() <= icd.topics.keys())

"""The records of a fuzz: some are good and marked, the others have something wrong in them."""

from collections.abc import Iterator
from random import Random
from typing import Final, NamedTuple

from facade.bus.port import Record
from proving.fuzz import good
from proving.fuzz.mutations import flipped, spoilt

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
_KINDS, _WEIGHTS = list(SHARES), list(SHARES.values())


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
    topic, message = chance.choices(_KINDS, _WEIGHTS)[0]
    if topic not in INTERNAL and message != "alert-action" and chance.random() < _GOOD_SHARE:
        counts[message] = counts.get(message, -1) + 1
        return Numbered(_good(topic, message, counts[message], now_us), True, message)
    document = good.documents(now_us, number)[message]
    if "node" in document:
        document["node"] = chance.randrange(GOOD_GROUP)
    if topic == "alert-packets":
        made = good.packet({**document, "attachments": []})
        return Numbered(_record(made, flipped(chance, made.value), chance, partitions), False, message)
    made, value = spoilt(chance, good.record(topic, message, document), document)
    if _OF_GOOD_GROUP in (value or b""):
        value = b""  # a byte that became another one
    return Numbered(_record(made, value, chance, partitions), False, message)


def _good(topic: str, message: str, count: int, now_us: int) -> Record:
    document = good.documents(now_us, count)[message]
    if "node" in document:
        document |= {"node": GOOD_GROUP} | ({"seq": count} if "seq" in document else {})
    if "subarray" in document:
        document["subarray"] = GOOD_SUBARRAY
    if message == "table-segment":
        document |= {"product": f"subarray/{GOOD_SUBARRAY:02d}/good", "table": f"good-{count}"}
    if message == "alert":
        document |= {"condition": "fuzzGood", "source": f"good/{topic}/{count % 8}"}
    made = (
        good.packet({**document, "attachments": []})
        if topic == "alert-packets"
        else good.record(topic, message, document)
    )
    headers = (*made.headers, (MARK, str(count).encode()))
    return Record(topic=topic, key=made.key, value=made.value, headers=headers)


def _record(made: good.Good, value: bytes | None, chance: Random, partitions: dict[str, int]) -> Record:
    partition = chance.randrange(partitions[made.topic]) if chance.random() < 0.2 else -1
    return Record(topic=made.topic, key=made.key, value=value, headers=made.headers, partition=partition)


def records(seed: int, first: int, count: int, now_us: int, partitions: dict[str, int]) -> Iterator[Numbered]:
    """Return some records one after the other, all of one time."""
    counts: dict[str, int] = {}
    for number in range(first, first + count):
        yield numbered(seed, number, now_us, partitions, counts)

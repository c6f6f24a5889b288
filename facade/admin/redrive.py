"""Puts dead letters back on their original topics, each record once.

The transaction that puts a record back also writes a mark to `dead-letters`, which names the record by its first
offset. So a redrive that is killed, or started twice, repeats nothing, and needs no other store. A mark looks like a
dead letter with the reason `REDRIVEN` and no value. An entry on `accounts`, in the same transaction, has the number of
records that were put back on each topic.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

import msgspec

from facade.kernel.bus.dead_letters import COUNT, NUMBER, PREFIX, ROW, original, size_of
from facade.kernel.bus.dead_letters import dead_letter as make_dead_letter
from facade.kernel.bus.offsets import ACCOUNTS
from facade.kernel.bus.port import Record
from facade.kernel.clock import NEVER, Clock, Time
from facade.kernel.icd.model import Icd
from facade.kernel.icd.topic_model import Topic
from facade.kernel.messages import StreamAccount
from facade.kernel.outcome import LATE, USED, Outcome, RecordRejected
from facade.kernel.printable import printable

CLIENT: Final = f"{PREFIX}client"
"""Header of a mark: user, host and process that put the record back."""
BY: Final = "dead-letters redrive"
"""Writer of the marks and entries of a redrive."""
AT: Final = f"{PREFIX}redriven_us"
"""Header of a mark: Unix time of the redrive [us], as decimal text."""
REDRIVEN: Final = "redriven"
FROM: Final = "redriven.from"
"""Header of a restored record: partition:offset of its dead letter."""
FIRST: Final = "redriven.first"
"""Header of a restored record: topic/partition/offset of its first appearance."""
_OVERHEAD = 512
"""Upper bound of the size that Kafka and our two headers add to a record [bytes]."""
_MOST_BYTES = 8_000_000
"""Size of records at which a transaction is ended."""


class DeadLetterOffset(NamedTuple):
    """Position of a dead letter on its topic."""

    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.partition}:{self.offset}"


class Origin(NamedTuple):
    """Original position of a dead letter's record; the time distinguishes it from a record of a topic created again."""

    topic: str
    partition: int
    offset: int
    timestamp_us: Time
    row: int = -1
    """Number of a row in a columnar batch; -1: the whole record."""

    def __str__(self) -> str:
        row = "" if self.row < 0 else f", row {self.row}"
        return f"{self.topic}/{self.partition}/{self.offset}{row}"


class RedriveFate(StrEnum):
    """Decision of a redrive on a dead letter."""

    PUT_BACK = "is put back"
    LATE = "is put back, and counts as late: it adds to totals, but to no window"
    DONE = "was put back before"
    RETURNED = "came back after it was put back"
    FAILS = "would fail again"
    COPY = "is another letter of the same record"
    TOPIC = "its topic takes nothing back"
    NO_VALUE = "holds no value"
    TOO_LARGE = "is too large for its topic"


UNLESS_AGAIN: Final = (RedriveFate.DONE, RedriveFate.RETURNED, RedriveFate.FAILS)
"""Dead letters that are put back only on the caller's request."""
Trial = Callable[[Record], Outcome]
"""Returns the outcome that a record would have with the readers of its topic, if it were appended now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A dead letter without its record; its texts are safe to print."""

    at: DeadLetterOffset
    written_us: Time
    origin: Origin
    reason: str
    path: str
    detail: str
    by: str
    size: int
    """Of the original record [bytes]."""
    has_value: bool
    is_mark: bool
    was_redriven: bool
    """Whether the record had already been put back when it became this dead letter."""


def read_dead_letter(record: Record) -> DeadLetter | None:
    """Return a record of `dead-letters` as a dead letter; None: it is not one of the facade's."""
    said = {name[len(PREFIX) :]: text_of(raw) for name, raw in record.headers if name.startswith(PREFIX)}
    numbers = [said.get(name, "") for name in ("partition", "offset", "timestamp_us")] + [said.get(ROW, "-1")]
    if not said.get("topic") or not said.get("reason") or not all(map(NUMBER.fullmatch, numbers)):
        return None
    whole = original(record)
    return DeadLetter(
        at=DeadLetterOffset(record.partition, record.offset),
        written_us=record.timestamp_us,
        origin=Origin(said["topic"], int(numbers[0]), int(numbers[1]), Time(int(numbers[2])), int(numbers[3])),
        reason=said["reason"],
        path=said.get("path", ""),
        detail=said.get("detail", ""),
        by=said.get("by", ""),
        size=size_of(whole),
        has_value=record.value is not None,
        is_mark=said["reason"] == REDRIVEN,
        was_redriven=any(name == FROM for name, _ in record.headers),
    )


def text_of(raw: bytes) -> str:
    r"""Return bytes as printable text, with bytes that are not UTF-8 as in ``\xff``."""
    return printable(raw.decode(errors="backslashreplace"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The dead letters that a command concerns; an empty condition excludes nothing."""

    topics: Collection[str] = ()
    reasons: Collection[str] = ()
    since_us: Time = NEVER
    offsets: Collection[DeadLetterOffset] = ()

    def has(self, dead_letter: DeadLetter) -> bool:
        """Return whether a dead letter is selected."""
        return (
            (not self.topics or dead_letter.origin.topic in self.topics)
            and (not self.reasons or dead_letter.reason in self.reasons)
            and dead_letter.written_us >= self.since_us
            and (not self.offsets or dead_letter.at in self.offsets)
        )


class RedrivePlan(NamedTuple):
    """The effect of a redrive."""

    chosen: list[DeadLetterOffset]
    """Dead letters to put back, in the order of the log."""
    counts: Counter[tuple[str, str, RedriveFate]]
    """Dead letters by topic, reason and fate."""
    failures: dict[tuple[str, str], RecordRejected]
    """Reason of the first one that would fail again, by topic and reason."""
    missing: list[DeadLetterOffset]
    """Chosen offsets at which there is no dead letter of the selection."""

    def blocked(self) -> int:
        """Count the dead letters that need ``again``."""
        return sum(count for (_, _, fate), count in self.counts.items() if fate in UNLESS_AGAIN)


def takes_back(icd: Icd, topic: Topic) -> bool:
    """Return whether records may be put back on a topic.

    They may if each record stands alone, and SDP's side writes them: the newest of a compacted topic would be an old
    one, a command has expired, and a record of the facade belongs to a transaction.
    """
    foreign = any(icd.roles[role].side == "SDP" for role in topic.writers if role in icd.roles)
    foreign = foreign and topic is not icd.topics.get(ACCOUNTS)
    return topic.cleanup == "delete" and topic.qos not in ("command", "state") and foreign


def plan(
    dead_letters: Iterable[Record],
    icd: Icd,
    selection: Selection,
    trial: Trial = lambda _: USED,
    *,
    again: bool = False,
) -> RedrivePlan:
    """Return the plan of a redrive from all records on `dead-letters`.

    Parameters
    ----------
    dead_letters
        All records from the beginning of the topic: a mark may be anywhere after its dead letter.
    trial
        Reads the record of a dead letter; see `facade.tools.dead_letters.trials_of`.
    again
        Also dead letters that were put back before, or that would fail again.
    """
    meant: list[tuple[DeadLetter, Outcome]] = []
    done: set[Origin] = set()
    open_topics = {name: topic for name, topic in icd.topics.items() if takes_back(icd, topic)}
    for record in dead_letters:
        dead_letter = read_dead_letter(record)
        if dead_letter is None:
            continue
        if dead_letter.is_mark:
            done.add(dead_letter.origin)
        elif selection.has(dead_letter):
            # Judged here, as all values would fill the memory.
            takes = dead_letter.origin.topic in open_topics and dead_letter.has_value
            meant.append((dead_letter, trial(original(record)) if takes else USED))
    chosen: dict[Origin, DeadLetterOffset] = {}
    counts: Counter[tuple[str, str, RedriveFate]] = Counter()
    failures: dict[tuple[str, str], RecordRejected] = {}
    for dead_letter, outcome in meant:
        fate = (
            RedriveFate.COPY
            if dead_letter.origin in chosen
            else _fate(dead_letter, outcome, open_topics, done, again=again)
        )
        if fate in (RedriveFate.PUT_BACK, RedriveFate.LATE):
            chosen[dead_letter.origin] = dead_letter.at
        if fate is RedriveFate.FAILS and isinstance(outcome, RecordRejected):
            failures.setdefault((dead_letter.origin.topic, dead_letter.reason), outcome)
        counts[dead_letter.origin.topic, dead_letter.reason, fate] += 1
    put = sum(count for (*_, fate), count in counts.items() if fate in (RedriveFate.PUT_BACK, RedriveFate.LATE))
    assert put == len(chosen), f"{put} dead letters are to be put back, and {len(chosen)} would be"
    found = {dead_letter.at for dead_letter, _ in meant}
    missing = [at for at in dict.fromkeys(selection.offsets) if at not in found]
    return RedrivePlan(list(chosen.values()), counts, failures, missing)


def _fate(
    dead_letter: DeadLetter, outcome: Outcome, topics: Mapping[str, Topic], done: Collection[Origin], *, again: bool
) -> RedriveFate:
    topic = topics.get(dead_letter.origin.topic)
    if topic is None:
        return RedriveFate.TOPIC
    if not dead_letter.has_value:
        return RedriveFate.NO_VALUE
    if dead_letter.size + _OVERHEAD > topic.max_bytes:
        return RedriveFate.TOO_LARGE
    if dead_letter.origin in done and not again:
        return RedriveFate.DONE
    if dead_letter.was_redriven and not again:
        return RedriveFate.RETURNED
    if isinstance(outcome, RecordRejected) and not again:
        return RedriveFate.FAILS
    return RedriveFate.LATE if outcome == LATE else RedriveFate.PUT_BACK


def put_back(dead_letter: Record, client: str = "", time_us: Time = NEVER) -> list[Record]:
    """Return the original record of a dead letter, and its mark.

    Parameters
    ----------
    client
        User, host and process of the redrive.
    time_us
        Time of the redrive [Unix us].
    """
    whole, at = original(dead_letter), str(DeadLetterOffset(dead_letter.partition, dead_letter.offset))
    first = dict(whole.headers).get(FIRST, f"{whole.topic}/{whole.partition}/{whole.offset}".encode())
    kept = [header for header in whole.headers if header[0] not in (FROM, FIRST)]
    headers = (*kept, (FROM, at.encode()), (FIRST, first))
    record = Record(topic=whole.topic, key=whole.key, value=whole.value, headers=headers)
    why = RecordRejected(REDRIVEN, "", f"put back from dead letter {at}")
    mark = make_dead_letter(replace(whole, key=None, value=None, headers=()), why, by=BY)
    row = [header for header in dead_letter.headers if header[0] == PREFIX + ROW]
    who = [(CLIENT, client.encode())] if client else []
    who += [(AT, str(time_us).encode())] if time_us else []
    return [record, replace(mark, headers=(*mark.headers, *row, *who))]


class TransactionWriter(Protocol):
    """Writes records so that all of them are on the bus, or none."""

    def write(self, records: list[Record]) -> None:
        """Write some records in one transaction.

        Raises
        ------
        BusError
            They may not be on the bus; the writer is unusable afterwards.
        """


def accounted(dead_letters: Iterable[Record], time_us: Time) -> Iterator[Record]:
    """Return the entries on `accounts` of dead letters that are put back at a time."""
    counts: Counter[str] = Counter()
    for dead_letter in dead_letters:
        said = dict(dead_letter.headers).get(PREFIX + COUNT, b"1").decode(errors="replace")
        counts[original(dead_letter).topic] += max(int(said), 1) if NUMBER.fullmatch(said) else 1
    for topic, count in counts.items():
        entry = StreamAccount(
            worker=BY, stream=topic, partition=-1, time=time_us, offset_from=-1, offset_to=-1, high_watermark=-1,
            consumed=0, used=0, late=0, suppressed=0, dead_lettered=0, in_flight=0, reasons={}, redriven=count,
        )  # fmt: skip
        yield Record(topic=ACCOUNTS, key=f"{topic}/-1".encode(), value=msgspec.json.encode(entry))


class Redrive:
    """Puts selected dead letters back, some in each step.

    Parameters
    ----------
    dead_letters
        Dead letters in the order of the log, selected or not.
    most
        Most records of one transaction.
    client
        User, host and process of the redrive.
    """

    def __init__(
        self,
        dead_letters: Iterator[Record],
        chosen: Collection[DeadLetterOffset],
        writer: TransactionWriter,
        clock: Clock,
        *,
        most: int,
        client: str = "",
    ) -> None:
        self._client = client
        self._dead_letters, self._chosen, self._writer, self._most = dead_letters, frozenset(chosen), writer, most
        self._clock = clock
        self.done = 0
        """Records put back."""

    def step(self) -> bool:
        """Put some back, in one transaction; return False at the end."""
        batch: list[Record] = []
        size = 0
        for dead_letter in self._dead_letters:
            if (dead_letter.partition, dead_letter.offset) in self._chosen:
                batch.append(dead_letter)
                size += size_of(dead_letter)
            if len(batch) == self._most or size > _MOST_BYTES:
                break
        if batch:
            now_us = self._clock.now_us()
            records = [record for dead_letter in batch for record in put_back(dead_letter, self._client, now_us)]
            assert len(records) == 2 * len(batch), "each dead letter that is put back must have its mark"
            self._writer.write([*records, *accounted(batch, now_us)])
            self.done += len(batch)
        return bool(batch)

"""Puts dead letters back on the topics that they came from, each record once.

The topic of the dead letters says itself what was put back: in the transaction that puts a record back stands a mark on
`dead-letters`, which names the record by where it first was. So a redrive that is killed, or begun twice, repeats
nothing, and no other store is needed. A mark looks like a dead letter with the reason `REDRIVEN` and no value. An entry
on `accounts`, in the same transaction, says how many were put back on each topic.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

import msgspec

from facade.bus.dead_letters import COUNT, NUMBER, PREFIX, ROW, TOPIC, original
from facade.bus.offsets import ACCOUNTS
from facade.bus.port import Record
from facade.clock import Clock
from facade.icd.model import Icd
from facade.icd.topic_model import Topic
from facade.messages import StreamAccount
from facade.outcome import LATE, USED, Outcome, Rejected
from facade.printable import printable

BY: Final = "dead-letters redrive"
"""Who puts letters back, in the marks and entries of that."""
REDRIVEN: Final = "redriven"
"""Reason of a mark."""
FROM: Final = "redriven.from"
"""Header of a record that was put back: partition:offset of its dead letter."""
FIRST: Final = "redriven.first"
"""Header of a record that was put back: topic/partition/offset at which it was first."""
_OVERHEAD = 512
"""More than Kafka and our two headers add to a record [bytes]."""
_MOST_BYTES = 8_000_000
"""A transaction of more values is ended."""
Place = tuple[int, int]
"""Partition and offset of a dead letter."""


class Origin(NamedTuple):
    """Where a record was that became a dead letter; the time tells it from one of a topic that was made again."""

    topic: str
    partition: int
    offset: int
    timestamp_us: int
    row: int = -1
    """Number of a row in a columnar batch; -1: the whole record."""

    def __str__(self) -> str:
        row = "" if self.row < 0 else f", row {self.row}"
        return f"{self.topic}/{self.partition}/{self.offset}{row}"


class Fate(StrEnum):
    """What a redrive does with a dead letter."""

    PUT_BACK = "is put back"
    LATE = "is put back, and counts as late: it adds to no window"
    DONE = "was put back before"
    RETURNED = "came back after it was put back"
    FAILS = "would fail again"
    COPY = "is another letter of the same record"
    TOPIC = "its topic takes nothing back"
    NO_VALUE = "holds no value"
    TOO_LARGE = "is too large for its topic"


UNLESS_AGAIN: Final = (Fate.DONE, Fate.RETURNED, Fate.FAILS)
"""Dead letters that are put back only where the caller says so."""
Trial = Callable[[Record], Outcome]
"""Says what a reader of its topic would make of a record that is appended now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """What a dead letter says, without the record in it; its texts can be printed anywhere."""

    place: Place
    written_us: int
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
    """Whether the record had been put back when it became this dead letter."""


def read_letter(record: Record) -> Letter | None:
    """Return what a record of `dead-letters` says; None: it is no dead letter of the facade's."""
    said = {name[len(PREFIX) :]: text_of(raw) for name, raw in record.headers if name.startswith(PREFIX)}
    numbers = [said.get(name, "") for name in ("partition", "offset", "timestamp_us")] + [said.get(ROW, "-1")]
    if not said.get("topic") or not said.get("reason") or not all(map(NUMBER.fullmatch, numbers)):
        return None
    whole = original(record)
    sizes = [len(name) + len(raw) for name, raw in whole.headers]
    return Letter(
        place=(record.partition, record.offset),
        written_us=record.timestamp_us,
        origin=Origin(said["topic"], *map(int, numbers)),
        reason=said["reason"],
        path=said.get("path", ""),
        detail=said.get("detail", ""),
        by=said.get("by", ""),
        size=len(record.key or b"") + len(record.value or b"") + sum(sizes),
        has_value=record.value is not None,
        is_mark=said["reason"] == REDRIVEN,
        was_redriven=any(name == FROM for name, _ in record.headers),
    )


def text_of(raw: bytes) -> str:
    r"""Return bytes as text that can be printed anywhere; what is no UTF-8 as in ``\xff``."""
    return printable(raw.decode(errors="backslashreplace"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which dead letters are meant; what is empty leaves nothing out."""

    topics: Collection[str] = ()
    reasons: Collection[str] = ()
    since_us: int = 0
    places: Collection[Place] = ()

    def has(self, letter: Letter) -> bool:
        """Return whether a dead letter is meant."""
        return (
            (not self.topics or letter.origin.topic in self.topics)
            and (not self.reasons or letter.reason in self.reasons)
            and letter.written_us >= self.since_us
            and (not self.places or letter.place in self.places)
        )


class Plan(NamedTuple):
    """What a redrive would do."""

    chosen: list[Place]
    """Dead letters to put back, in the order of the log."""
    counts: Counter[tuple[str, str, Fate]]
    """Dead letters by topic, reason and what is done with them."""
    failures: dict[tuple[str, str], Rejected]
    """Why the first one that would fail again would, by topic and reason."""

    def blocked(self) -> int:
        """Count the dead letters that only ``again`` puts back."""
        return sum(count for (_, _, fate), count in self.counts.items() if fate in UNLESS_AGAIN)


def takes_back(icd: Icd, topic: Topic) -> bool:
    """Return whether records may be put back on a topic.

    They may where each record stands for itself, and SDP's side writes them: the newest of a compacted topic would be
    an old one, a command has expired, and what the facade writes belongs to a transaction.
    """
    foreign = any(icd.roles[role].side == "SDP" for role in topic.writers if role in icd.roles)
    foreign = foreign and topic is not icd.topics.get(ACCOUNTS)
    return topic.cleanup == "delete" and topic.qos not in ("command", "state") and foreign


def plan(
    letters: Iterable[Record],
    icd: Icd,
    selection: Selection,
    trial: Trial = lambda _: USED,
    *,
    again: bool = False,
) -> Plan:
    """Say what is to be put back, by all that stands on `dead-letters`.

    Parameters
    ----------
    letters
        From the beginning of the topic: a mark may stand anywhere behind its letter.
    trial
        Reads the record of a dead letter; see `facade.cli.dead_letters.trials_of`.
    again
        Also dead letters that were put back before, or that would fail again.
    """
    meant: list[tuple[Letter, Outcome]] = []
    done: set[Origin] = set()
    open_topics = {name: topic for name, topic in icd.topics.items() if takes_back(icd, topic)}
    for record in letters:
        letter = read_letter(record)
        if letter is None:
            continue
        if letter.is_mark:
            done.add(letter.origin)
        elif selection.has(letter):
            # Judged here, as the value of each would fill the memory.
            takes = letter.origin.topic in open_topics and letter.has_value
            meant.append((letter, trial(original(record)) if takes else USED))
    chosen: dict[Origin, Place] = {}
    counts: Counter[tuple[str, str, Fate]] = Counter()
    failures: dict[tuple[str, str], Rejected] = {}
    for letter, outcome in meant:
        fate = Fate.COPY if letter.origin in chosen else _fate(letter, outcome, open_topics, done, again=again)
        if fate in (Fate.PUT_BACK, Fate.LATE):
            chosen[letter.origin] = letter.place
        if fate is Fate.FAILS and isinstance(outcome, Rejected):
            failures.setdefault((letter.origin.topic, letter.reason), outcome)
        counts[letter.origin.topic, letter.reason, fate] += 1
    return Plan(list(chosen.values()), counts, failures)


def _fate(
    letter: Letter, outcome: Outcome, topics: Mapping[str, Topic], done: Collection[Origin], *, again: bool
) -> Fate:
    topic = topics.get(letter.origin.topic)
    if topic is None:
        return Fate.TOPIC
    if not letter.has_value:
        return Fate.NO_VALUE
    if letter.size + _OVERHEAD > topic.max_bytes:
        return Fate.TOO_LARGE
    if letter.origin in done and not again:
        return Fate.DONE
    if letter.was_redriven and not again:
        return Fate.RETURNED
    if isinstance(outcome, Rejected) and not again:
        return Fate.FAILS
    return Fate.LATE if outcome == LATE else Fate.PUT_BACK


def put_back(letter: Record) -> list[Record]:
    """Return the record of a dead letter as it goes back, and the mark that says so."""
    whole, place = original(letter), f"{letter.partition}:{letter.offset}"
    first = dict(whole.headers).get(FIRST, f"{whole.topic}/{whole.partition}/{whole.offset}".encode())
    kept = [header for header in whole.headers if header[0] not in (FROM, FIRST)]
    record = Record(
        topic=whole.topic,
        key=whole.key,
        value=whole.value,
        headers=(*kept, (FROM, place.encode()), (FIRST, first)),
    )
    said = {
        "topic": whole.topic,
        "partition": str(whole.partition),
        "offset": str(whole.offset),
        "timestamp_us": str(whole.timestamp_us),
        "reason": REDRIVEN,
        "path": "",
        "detail": f"put back from dead letter {place}",
        "by": BY,
        **{name[len(PREFIX) :]: raw.decode() for name, raw in letter.headers if name == PREFIX + ROW},
    }
    headers = tuple((PREFIX + name, text.encode()) for name, text in said.items())
    return [record, Record(topic=TOPIC, key=None, value=None, headers=headers)]


class TransactionWriter(Protocol):
    """Writes records so that all of them are on the bus, or none."""

    def write(self, records: list[Record]) -> None:
        """Write some records in one transaction.

        Raises
        ------
        BusError
            They are not on the bus, or nobody knows; the writer is of no more use.
        """


def accounted(letters: Iterable[Record], time_us: int) -> Iterator[Record]:
    """Return what stands on `accounts` of letters that are put back at a time [Unix us]."""
    counts: Counter[str] = Counter()
    for letter in letters:
        said = dict(letter.headers).get(PREFIX + COUNT, b"1").decode(errors="replace")
        counts[original(letter).topic] += max(int(said), 1) if NUMBER.fullmatch(said) else 1
    for topic, count in counts.items():
        entry = StreamAccount(
            worker=BY, stream=topic, partition=-1, time=time_us, offset_from=-1, offset_to=-1, high_watermark=-1,
            consumed=0, used=0, late=0, suppressed=0, dead_lettered=0, in_flight=0, reasons={}, redriven=count,
        )  # fmt: skip
        yield Record(topic=ACCOUNTS, key=f"{topic}/-1".encode(), value=msgspec.json.encode(entry))


class Redrive:
    """Puts chosen dead letters back, some in each step.

    Parameters
    ----------
    letters
        Dead letters in the order of the log, others among them.
    most
        Of one transaction.
    """

    def __init__(
        self,
        letters: Iterator[Record],
        chosen: Collection[Place],
        writer: TransactionWriter,
        clock: Clock,
        *,
        most: int,
    ) -> None:
        self._letters, self._chosen, self._writer, self._most = letters, frozenset(chosen), writer, most
        self._clock = clock
        self.done = 0
        """Records that are back."""

    def step(self) -> bool:
        """Put some back, in one transaction; return False at the end."""
        batch: list[Record] = []
        size = 0
        for letter in self._letters:
            if (letter.partition, letter.offset) in self._chosen:
                batch.append(letter)
                size += len(letter.value or b"")
            if len(batch) == self._most or size > _MOST_BYTES:
                break
        if batch:
            records = [record for letter in batch for record in put_back(letter)]
            self._writer.write([*records, *accounted(batch, round(self._clock.now() * 1e6))])
            self.done += len(batch)
        return bool(batch)

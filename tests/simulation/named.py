"""What must hold when brokers lose what they had confirmed: totals are right, or what is wrong with them is named."""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from facade.reading import Reading

if TYPE_CHECKING:
    from tests.simulation.site import Site

_OFFSETS = re.compile(r"([\w.-]+), partition (\d+)[:,] offsets (\d+) to (\d+)")
_WHOLE = re.compile(r"made again|ends before")
"""Says of a whole topic that it is another one, or of a whole log that its end was lost."""
NAMES = re.compile(f"{_OFFSETS.pattern}|{_WHOLE.pattern}")
"""Lines of Status and of alarms that name a deviation."""
_WORD = re.compile(r"[\w-]+(?:\.\w+)*")
_SPEAKERS = {("mid-sdp/bus/0", "Status"), ("mid-sdp/bus/0", "lastError"), ("mid-sdp/alerts/0", "lastAlert")}
"""Attributes that name deviations."""
_NODES = "mid-sdp/ingest/"
"""Devices of which Status says from which offset on their totals count."""
HEAPS = "ingest.heaps"


@dataclass(frozen=True, slots=True)
class Finding:
    """One total at the end of a run."""

    total: str
    wrong: int
    """By how much it is too large, or, below 0, too small."""
    lost: int
    """Records that the log does not have."""
    topics: tuple[str, ...]
    """Only a line about one of them names a deviation of this total. The first is the topic of the records that are
    counted."""

    def named(self, lines: Iterable[str]) -> float:
        """Return how many of its records lines name; infinite: a whole topic, or records that stand for many."""
        offsets: dict[str, set[int]] = {}
        for line in filter(self.is_about, lines):
            ranges = [one for one in _OFFSETS.findall(line) if one[0] in self.topics]
            if any(topic != self.topics[0] for topic, *_ in ranges) or (not ranges and _WHOLE.search(line)):
                return math.inf
            for _, partition, first, last in ranges:
                offsets.setdefault(partition, set()).update(range(int(first), int(last) + 1))
        return sum(map(len, offsets.values()))

    def is_about(self, line: str) -> bool:
        """Return whether a line is about one of its topics."""
        ranges = _OFFSETS.findall(line)
        return bool(
            {one[0] for one in ranges} & set(self.topics) if ranges else set(_WORD.findall(line)) & set(self.topics)
        )


class Said:
    """Lines of SdpBus and of alarms that name a deviation; told of each reading."""

    def __init__(self) -> None:
        self.lines: dict[str, None] = {}

    def watch(self, device: str, attribute: str, before: Reading | None, now: Reading) -> None:
        """Take a reading."""
        if (device, attribute) in _SPEAKERS or (attribute == "Status" and device.startswith(_NODES)):
            lines = (one for line in str(now.value).splitlines() for one in line.split(" | "))
            self.lines |= dict.fromkeys(line for line in lines if NAMES.search(line))


def deviations(site: "Site") -> Iterator[str]:
    """Compare totals with the log, and return those that are wrong by more than what is named."""
    low, lost = records(site, HEAPS)
    nodes = [f"mid-sdp/ingest/{node:04d}" for node in range(site.settings.nodes)]
    shown = {
        ("heaps, SdpBus", (HEAPS, "accounts")): site.value("mid-sdp/bus/0", "ingestHeapsConsumed"),
        ("heaps, nodes", (HEAPS, "ingest.summary")): sum(
            site.value(node, name) or 0 for node in nodes for name in ("heapsTotal", "heapsLate")
        ),
    }
    for (total, topics), value in shown.items():
        yield from _judge(site, Finding(total, _wrong(value or 0, low, lost), lost, topics), value)


def records(site: "Site", topic: str) -> tuple[int, int]:
    """Return how many records of a topic a reader must have counted, and how many more it may have.

    What was deleted was there to be read; what a broker has lost, a reader may have had or not.
    """
    name = site.settings.prefix + topic
    broker = site.broker
    on_log = [entry for partition in broker.topics[name].partitions for entry in partition.entries]
    return _count([*on_log, *broker.deleted[name]]), _count(broker.lost[name])


def _count(entries: list[Any]) -> int:
    return sum(not entry.is_mark for entry in entries)


def _wrong(shown: int, low: int, lost: int) -> int:
    return min(shown - low, 0) or max(shown - low - lost, 0)


def _excused(site: "Site", finding: Finding) -> float:
    """Return how many records too few are excused by what names a whole topic; nothing excuses one too many.

    What was lost is no record that must be counted in any case; of its own topic only what was deleted is missing.
    """
    if finding.wrong > 0:
        return 0.0
    others = {site.settings.prefix + topic for topic in finding.topics[1:]}
    if any(site.broker.lost[topic] or site.broker.deleted[topic] for topic in others):
        return math.inf  # one record there stands for many
    return float(_count(site.broker.deleted[site.settings.prefix + finding.topics[0]]))


def _judge(site: "Site", finding: Finding, shown: Any) -> Iterator[str]:
    named = finding.named(site.said.lines)
    if math.isinf(named):
        named = _excused(site, finding)
    if named < abs(finding.wrong):
        said = " | ".join(filter(finding.is_about, site.said.lines)) or "nothing"
        yield (
            f"{finding.total}: {shown} is wrong by {finding.wrong:+}, {finding.lost} records were lost, and {named:g}"
            f" are named: {said}"
        )

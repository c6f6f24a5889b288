"""Watermarks: up to which time the partitions of a windowed topic are read, and so which windows are whole.

How windows close:

* **The worker** knows of each partition up to which append time it has read it, also where nothing comes; see
  `facade.bus.kafka.transactions`. It writes this watermark behind the summaries, in the same transaction and to each
  partition of the summary topic. One is due when a window has just become closed, so about once for each window.
* **The device server** closes a window of a group when the watermark of the group's partitions has passed the end of
  the window and the allowed disorder; a window over all groups, when all partitions have. Whoever reads the watermark
  has read the summaries before it. So neither the newest data time nor the clock of the device server closes a window,
  and a sender whose clock is ahead cuts nobody's. A partition without records is read, and closes windows in time. A
  worker that stands still closes none, and the staleness limit turns old values invalid.
* **The allowed disorder** is the ICD's: how much later than its data time a record may be appended, where the window
  is to be whole. The clocks of two brokers may differ by as much. What comes later is a straggler: it corrects the
  window, which is ATTR_WARNING from then on.

Watermarks only grow. A log that was made again has younger records, so what was read of the former one stays true.
"""

from collections.abc import Collection, Iterator

import msgspec

from facade.flows.telemetry.plan import Plan
from facade.messages import Watermark


def closed_at(plan: Plan, window: int) -> int:
    """Return from which watermark on a window is closed [Unix us].

    Parameters
    ----------
    window
        Its start [Unix us].
    """
    return window + plan.length_us + plan.disorder_us


def newest_close(plan: Plan, time: int) -> int:
    """Return the newest watermark that closes a window and is not behind a time [Unix us]."""
    return time - (time - plan.disorder_us) % plan.length_us


class Mark(msgspec.Struct, array_like=True, gc=False):
    """Up to which time a worker has read a partition."""

    read_to: int
    """[Unix us]"""
    worker: str


class Watermarks(msgspec.Struct):
    """Up to which time the partitions of one windowed topic are read."""

    topic_id: str = ""
    partitions: int = 0
    """How many the topic has; 0: not known yet."""
    marks: dict[int, dict[int, Mark]] = {}
    """By partition of the windowed topic, and then of the summary topic."""
    former: set[str] = set()
    """Ids of the topic before it was made again. Watermarks of workers that have not heard of that do not count."""

    def take(self, watermark: Watermark, partition: int) -> bool:
        """Take a watermark from a partition of the summary topic; return whether the topic has more than before."""
        topic_id = watermark.log.partition("#")[0]
        if topic_id in self.former:
            return False
        if topic_id != self.topic_id:  # made again: the old marks say nothing of its records
            self.former.add(self.topic_id)
            self.topic_id, self.partitions = topic_id, 0
            self.marks.clear()
        before, self.partitions = self.partitions, max(self.partitions, watermark.partitions)
        marks = self.marks.setdefault(watermark.partition, {})
        known = marks.get(partition)
        if known is None or known.read_to < watermark.read_to:
            marks[partition] = Mark(watermark.read_to, watermark.worker)
        return 0 < before < self.partitions

    def read_to(self, sources: Collection[int], summaries: Collection[int]) -> int:
        """Return up to which time all of some partitions are read [Unix us]; 0: not known.

        Parameters
        ----------
        sources
            Partitions of the windowed topic; none: all of it.
        summaries
            Those of the summary topic that have to say so.
        """
        times = [
            mark.read_to if (mark := marks.get(summary)) is not None else 0
            for marks in (self.marks.get(source, {}) for source in sources or range(self.partitions))
            for summary in summaries
        ]
        return min(times, default=0)

    def behind(self, sources: Collection[int], time: int) -> Iterator[tuple[int, Mark]]:
        """Return partitions that are not read up to a time [Unix us], and how far they are; sources as of `read_to`."""
        for source in sources or range(self.partitions):
            newest = max(self.marks.get(source, {}).values(), key=lambda mark: mark.read_to, default=None)
            if newest is not None and newest.read_to < time:
                yield source, newest

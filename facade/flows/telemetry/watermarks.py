"""Watermarks: the times up to which the partitions of a windowed topic are read, and so which windows are whole.

* **The worker** knows the append time up to which it has read each partition, also without records; see
  `facade.kernel.bus.kafka.transactions`. It writes this watermark after the summaries, in the same transaction, to each
  partition of the summary topic. One is due when a window has just closed, so about once for each window.
* **The device server** closes a window of a group when the watermark of the group's partitions has passed the end of
  the window and the allowed disorder, and a window over all groups when all partitions have. It has then read the
  summaries before the watermark. No data time and no clock of the device server closes a window. Partitions without
  records close windows in time; a worker that stands still closes none, and the staleness limit turns old values
  invalid.
* **The allowed disorder** of the ICD is the largest delay of a record's append time after its data time in a whole
  window. The clocks of two brokers may differ by as much. A later record is a straggler: it corrects the window, which
  is ATTR_WARNING from then on.

Watermarks only grow. A topic that was created again has younger records, so the former watermarks stay true.
"""

from collections.abc import Collection, Iterator

import msgspec

from facade.kernel.clock import NEVER, Time
from facade.sdp.messages import Watermark


class Mark(msgspec.Struct, array_like=True, gc=False):
    """The time up to which a worker has read a partition."""

    read_to: Time
    worker: str


class Watermarks(msgspec.Struct):
    """The times up to which the partitions of one windowed topic are read."""

    topic_id: str = ""
    partitions: int = 0
    """Number of partitions of the topic; 0: unknown."""
    marks: dict[int, dict[int, Mark]] = {}
    """By partition of the windowed topic, and then of the summary topic."""
    former: set[str] = set()
    """Former ids of the topic; watermarks with them do not count."""

    def take(self, watermark: Watermark, partition: int) -> bool:
        """Apply a watermark from a partition of the summary topic; return whether the topic has new partitions."""
        topic_id = watermark.log.partition("#")[0]
        if topic_id in self.former:
            return False
        if topic_id != self.topic_id:  # created again: the old watermarks do not apply to its records
            self.former.add(self.topic_id)
            self.topic_id, self.partitions = topic_id, 0
            self.marks.clear()
        before, self.partitions = self.partitions, max(self.partitions, watermark.partitions)
        marks = self.marks.setdefault(watermark.partition, {})
        known = marks.get(partition)
        if known is None or known.read_to < watermark.read_to:
            marks[partition] = Mark(watermark.read_to, watermark.worker)
        return 0 < before < self.partitions

    def read_to(self, sources: Collection[int], summaries: Collection[int]) -> Time:
        """Return the least watermark of some partitions of the windowed topic, by default all; 0: unknown.

        Each must have it on the given partitions of the summary topic.
        """
        times = [
            mark.read_to if (mark := marks.get(summary)) is not None else NEVER
            for marks in (self.marks.get(source, {}) for source in sources or range(self.partitions))
            for summary in summaries
        ]
        return min(times, default=NEVER)

    def behind(self, sources: Collection[int], time: Time) -> Iterator[tuple[int, Mark]]:
        """Return partitions not read up to a time, with their watermarks; sources as of `read_to`."""
        for source in sources or range(self.partitions):
            newest = max(self.marks.get(source, {}).values(), key=lambda mark: mark.read_to, default=None)
            if newest is not None and newest.read_to < time:
                yield source, newest

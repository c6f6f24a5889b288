"""A summary topic as a flow of a device server: the windowed topics whose partials are on it, as devices show them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec

from facade.bus.offsets import Overlap
from facade.bus.port import Record
from facade.codec.decode import BatchDecoder
from facade.flows.telemetry.consistency import impossible, inconsistency
from facade.flows.telemetry.ledger import WindowLedger
from facade.flows.telemetry.partial import StreamSummary, Summary
from facade.flows.telemetry.plan import MICRO, Plan
from facade.flows.telemetry.rack import rows
from facade.flows.telemetry.view import Marker, TelemetryView
from facade.messages import RackSummary, Watermark
from facade.outcome import INCONSISTENT, USED, Outcome, RecordRejected, Suppressed
from facade.printable import excerpt
from facade.racks import Racks
from facade.runtime.accounts import OVERLAP
from facade.runtime.flow import VIEW_PERIOD, DeviceReading, Flow, LastReadings, Missing

_EVERY = 0.05
"""Least time between looks for closed windows [s], of streams of which something came; time alone waits longer."""

_RACK = re.compile(rb"([a-z0-9._-]{1,151}/)?([0-9]{1,4})-([0-9]{1,4})")
"""Key of the summary of a rack; the stream is in it where several share the topic."""
_OTHER_DEVICE, _OTHER_STREAM = Suppressed("other-device"), Suppressed("other-stream")


@dataclass(slots=True)
class ShownTopic:
    """What a device shows of a windowed topic."""

    device: str
    stream: str
    """The windowed topic."""
    view: TelemetryView
    marker: Marker | None = None
    """As of the last readings."""


class TelemetryFlow(Flow):
    """All partials of one summary topic; see `facade.runtime.flow.Flow`.

    Parameters
    ----------
    plans
        All windowed topics whose partials are on the topic.
    ledgers
        What this server keeps, by windowed topic.
    shown
        What its devices show.
    racks
        The racks of this deployment, by which workers summarise nodes.
    """

    durable = True

    def __init__(
        self,
        topic: str,
        plans: Mapping[str, Plan],
        ledgers: Mapping[str, WindowLedger],
        shown: Sequence[ShownTopic],
        partitions: Sequence[int] | None,
        racks: Racks,
    ) -> None:
        self.topic, self.partitions, self._racks = topic, partitions, racks
        self._plans, self.ledgers, self._shown = plans, ledgers, shown
        first = next(iter(plans.values()))
        self._only = None if first.is_shared else first.topic
        """The one windowed topic, where summaries do not say it."""
        self._decode = BatchDecoder[Summary | RackSummary | Watermark](first.form, RackSummary, Watermark).decode_one
        self._is_foreign = lru_cache(1024)(self._names_others)
        self._looked_at = self._all_at = 0.0
        """Of the last look, and of the last one at all streams [Unix s]."""
        self._folded: set[str] = set()
        """Streams of which something came since the last look."""
        self.reporting: dict[str, frozenset[Any]] = {}
        """Groups in the window shown over all groups, unless they have fallen silent, by windowed topic."""

    def fold(self, record: Record, *, count: bool) -> Outcome:
        """Merge a summary; see `facade.runtime.flow.Flow`."""
        if self._is_foreign(record.key):
            return _OTHER_DEVICE
        summary = self._decode(record.value)
        if isinstance(summary, RackSummary):
            return self._fold_rack(summary, record, count=count)
        if isinstance(summary, Watermark):
            return self._fold_watermark(summary, record, count=count)
        if not isinstance(summary, Summary):
            return summary
        stream = summary.stream if isinstance(summary, StreamSummary) else self._only
        plan = self._plans.get(stream or "")
        if plan is None:
            return _OTHER_STREAM  # perhaps of a newer worker
        try:
            group = plan.group(summary.group)
        except ValueError:
            return RecordRejected(INCONSISTENT, "$.group", f"expected a number, got {summary.group!r:.80}")
        # Before anything that is this server's own: one of the servers sets it aside, for all of them.
        if rejected := inconsistency(summary, record.timestamp_us, plan):
            return rejected
        ledger = self.ledgers.get(plan.topic)
        if ledger is None or not ledger.keeps(group):
            return _OTHER_DEVICE
        heard = record.timestamp_us / MICRO
        if overlap := ledger.take(group, summary, heard, count=count):
            return _refused(plan, summary, overlap)
        ledger.fold(group, summary.partials, heard, partition=summary.partition, count=count)
        self._folded.add(plan.topic)
        return USED

    def _fold_rack(self, summary: RackSummary, record: Record, *, count: bool) -> Outcome:
        """Merge the summary of a rack, as a whole or not at all."""
        plan = self._plans.get(summary.stream)
        if plan is None:
            return _OTHER_STREAM
        key = plan.rack_key(summary.first, summary.last)
        if record.key != key.encode():
            return RecordRejected(
                INCONSISTENT, "$.first", excerpt(f"expected the rack of the key {record.key!r}, got {key}")
            )
        if rejected := inconsistency(summary, record.timestamp_us, plan):
            return rejected
        nodes = self._racks.nodes(self._racks.rack(summary.first))
        if (summary.first, summary.last) != (nodes[0], nodes[-1]):
            text = f"expected a rack of nodes {nodes[0]} to {nodes[-1]}, as rack_size is {self._racks.size}, got {key}"
            return RecordRejected(
                INCONSISTENT, "$.first", f"{text}: workers and device servers must have one rack_size"
            )
        ledger = self.ledgers.get(plan.topic)
        if ledger is None or not ledger.keeps_any(range(summary.first, summary.last + 1)):
            return _OTHER_DEVICE
        if overlap := ledger.take_rack(summary, record.timestamp_us / MICRO, count=count):
            return _refused(plan, summary, overlap)
        kept = [row for row in rows(summary) if ledger.keeps(row[0])]
        if kept:
            ledger.fold_rack(kept, record.timestamp_us / MICRO, partition=summary.partition, count=count)
            self._folded.add(plan.topic)
        return USED if kept or not summary.node else _OTHER_DEVICE

    def _fold_watermark(self, watermark: Watermark, record: Record, *, count: bool) -> Outcome:
        """Take a watermark: it may close windows of all groups."""
        plan = self._plans.get(watermark.stream)
        if plan is None:
            return _OTHER_STREAM
        key = plan.watermark_key(watermark.partition)
        if record.key != key.encode():
            return RecordRejected(
                INCONSISTENT, "$.partition", excerpt(f"expected that of the key {record.key!r}, got {key}")
            )
        if rejected := impossible(watermark, record.timestamp_us, plan):
            return rejected
        ledger = self.ledgers.get(plan.topic)
        if ledger is None:
            return USED  # it is for all readers of the topic, and of no use here; to count it would drown the others
        ledger.take_watermark(watermark, record.partition, count=count)
        self._folded.add(plan.topic)
        return USED

    def lost_before(self) -> Iterator[Missing]:
        """Return of which records the summaries never came; see `facade.runtime.flow.Flow`."""
        for stream, ledger in self.ledgers.items():
            for partition, gap in ledger.taken_gaps():
                where = f"{stream}, partition {partition}: offsets {gap.first} to {gap.after - 1}"
                what = f"up to {gap.records} records are missing from totals"
                yield Missing(gap.records, f"{where} have lost summaries: {what}")

    def _names_others(self, key: bytes | None) -> bool:
        """Return whether a key names a rack of which this server keeps no node.

        A partition has several racks, so that is most of what a server reads, and it is not even decoded. Who keeps all
        nodes checks all summaries, their keys included, and sets the bad ones aside.
        """
        found = _RACK.fullmatch(key or b"")
        if found is None:
            return False
        stream = found[1].decode()[:-1] if found[1] else self._only
        ledger = self.ledgers.get(stream or "")
        return ledger is not None and not ledger.keeps_any(range(int(found[2]), int(found[3]) + 1))

    def readings(self, now: float, last: LastReadings) -> Iterator[DeviceReading]:
        """Return the readings of the devices that have something new to say."""
        if abs(now - self._looked_at) < _EVERY:
            return
        self._looked_at = now
        streams, self._folded = self._folded, set()
        if abs(now - self._all_at) >= VIEW_PERIOD:
            self._all_at, streams = now, set(self.ledgers)
        for one in self._shown:
            if one.stream not in streams:
                continue
            ledger = self.ledgers[one.stream]
            if one.view.group is None:
                shown = ledger.shown()
                self.reporting[one.stream] = ledger.live(shown.groups if shown else (), now, one.view.stale_after)
            marker = one.view.marker(ledger, now)
            if marker == one.marker:
                continue
            one.marker = marker
            before = dict(last.get(one.device, {}))
            for name, reading in one.view.readings(ledger, now, before):
                yield one.device, name, reading
            for name, reading in one.view.state(ledger, now):
                yield one.device, name, reading

    def as_dict(self) -> dict[str, Any]:
        """Return the state of all ledgers for a snapshot."""
        return {"streams": {stream: ledger.as_dict() for stream, ledger in self.ledgers.items()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take the state of all ledgers; see `facade.flows.telemetry.ledger`.

        Raises
        ------
        ValueError, msgspec.ValidationError
            It has another form.
        """
        if "nodes" in state and self._only is not None:  # as it was written before there were several streams
            state = {"streams": {self._only: {"groups": state["nodes"]}}}
        stored = msgspec.convert(state, _State).streams
        # All or nothing: whatever can fail comes before the first change.
        found = {stream: ledger.parse(stored.get(stream, _NOTHING)) for stream, ledger in self.ledgers.items()}
        for stream, restored in found.items():
            self.ledgers[stream].restore(restored)


def _refused(plan: Plan, summary: Summary | RackSummary, overlap: Overlap) -> RecordRejected:
    came = f"offsets {summary.offset_from} to {summary.offset_to - 1}, part {summary.part}"
    return RecordRejected(OVERLAP, "$.offset_from", f"{plan.topic}, partition {summary.partition}, {came}: {overlap}")


_NOTHING: dict[str, Any] = {"groups": {}}
"""State of a ledger that a snapshot does not have: its stream is new."""


class _State(msgspec.Struct):
    """A flow in a snapshot."""

    streams: dict[str, dict[str, Any]]

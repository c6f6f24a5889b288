"""Reads tables from records, step by step: from their segments, or from where a reference leads.

The assembling worker, the device server and the command line read them so; each says which records it wants.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from facade.bus.port import Record
from facade.clock import Clock
from facade.flows.tables.assembly import Assembly, Ended, PartialTable, complete
from facade.flows.tables.buffers import BufferPool
from facade.flows.tables.messages import read_header
from facade.flows.tables.references import ReferenceReader, References
from facade.messages import TableSegment
from facade.outcome import TOMBSTONE, RecordRejected, Suppressed


@dataclass(frozen=True, slots=True)
class Reference:
    """The record says where a table is."""

    header: TableSegment


SegmentOutcome = RecordRejected | Suppressed | Reference | Ended


class SegmentReader:
    """Takes records, and says of one after the other what becomes of it.

    Parameters
    ----------
    take
        Returns at most so many records, and waits at most so long for the first one [s].
    is_wanted
        Whether a record is to be looked at, by its header; None: it has no value.
    """

    def __init__(
        self,
        take: Callable[[int, float], Sequence[Record]],
        assembly: Assembly,
        clock: Clock,
        *,
        batch: int,
        is_wanted: Callable[[Record, TableSegment | RecordRejected | None], bool],
    ) -> None:
        self._take, self._assembly, self._clock = take, assembly, clock
        self._batch, self._is_wanted = batch, is_wanted
        self.waiting: list[Record] = []
        """Records that were taken and not looked at yet."""

    def take(self, wait: float) -> None:
        """Take as many records as there is room for."""
        if (room := self._batch - len(self.waiting)) > 0:
            self.waiting += self._take(room, 0.0 if self.waiting else wait)

    def outcomes(self, until: float = float("inf")) -> Iterator[tuple[Record, SegmentOutcome]]:
        """Return what becomes of the records that were taken; of one that belongs to a table under way, nothing.

        It ends behind a reference, which is to be read before all that waits, and at a time by the monotonic clock [s].
        """
        while self.waiting and self._clock.monotonic() < until:
            record = self.waiting.pop(0)
            header = None if record.value is None else read_header(record)
            if not self._is_wanted(record, header):
                continue
            if header is None:
                yield record, TOMBSTONE
            elif isinstance(header, RecordRejected):
                yield record, header
            elif (known := self._assembly.judge(header, record.partition)) is not None:
                yield record, known
            elif header.count == 0:
                yield record, Reference(header)
                return
            else:
                for ended in self._assembly.add(header, record, self._clock.monotonic()):
                    yield record, ended


class ReferencedTable:
    """A table that came as a reference; call `step` until it has ended.

    Parameters
    ----------
    record
        The reference.
    keep
        Whether the bytes of the table are kept, and not only verified.
    """

    def __init__(
        self, record: Record, header: TableSegment, references: References, pool: BufferPool, *, keep: bool
    ) -> None:
        self.record, self._header = record, header
        self._reader = ReferenceReader(references, str(header.url), header.size, header.sha256, pool, keep=keep)
        self.close = self._reader.close

    def step(self, now: float) -> Ended | None:
        """Read on; return the end of the table, or None: not all of it was read yet."""
        if not self._reader.step():
            return None
        table = PartialTable(
            header=self._header,
            partition=self.record.partition,
            first_offset=self.record.offset,
            newest=self.record,
            buffer=self._reader.buffer,
            touched=now,
            records=1,
        )
        return complete(table) if self._reader.rejected is None else Ended(table, self._reader.rejected)

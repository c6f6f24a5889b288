"""The records on ``processing-blocks``, and the source with which a controller writes them.

The key of a record is the id of its block.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from facade.kernel.bus.kafka.opening import OwnBus
from facade.kernel.bus.port import Record
from facade.kernel.clock import Clock, SystemClock
from facade.kernel.codec.decode import BatchDecoder
from facade.kernel.codec.plausible import wrong_key, wrong_unit
from facade.kernel.outcome import RecordRejected, Unused
from facade.sdp.messages import ProcessingBlock

BLOCKS = "processing-blocks"
STARTING: Final = "STARTING"
WAITING: Final = "WAITING"
RUNNING: Final = "RUNNING"
FINISHED: Final = "FINISHED"
FAILED: Final = "FAILED"
STATES = (STARTING, WAITING, RUNNING, FINISHED, FAILED)
ENDED = frozenset({FINISHED, FAILED})
_decode = BatchDecoder(ProcessingBlock).decode_one


def read_block(record: Record) -> ProcessingBlock | Unused:
    """Return the block of a record, or the reason why it is unusable. It raises no exception."""
    block = _decode(record.value)
    if not isinstance(block, ProcessingBlock):
        return block
    why = wrong_key(record.key, block.pb_id, "$.pb_id") or wrong_unit(block.time, record.timestamp_us, "$.time")
    return why or block


def block_record(block: ProcessingBlock) -> Record:
    """Return the record of a block."""
    return Record(topic=BLOCKS, key=block.pb_id.encode(), value=msgspec.json.encode(block))


class BlockSource(OwnBus):
    """Reports the processing blocks of one controller. One thread may use it; it stores nothing.

    Parameters
    ----------
    source
        Name of the controller.
    send
        Writes a record durably, such as `Call.publish` in a handler; by default by an own bus, see `OwnBus`.
    clock
        Clock of the times of states; by default the system's.
    after
        Continue numbering after this sequence, such as `newest_sequence` after a restart.

    Examples
    --------
    >>> with BlockSource("processing-controller") as blocks:
    ...     block = blocks.tell("pb-mvp01-20261123-00001", "eb-mvp01-20261123-00001", 1, "batch", "RUNNING")
    ...     blocks.remove("pb-mvp01-20261123-00001")
    >>> block.state
    'RUNNING'
    """

    def __init__(
        self,
        source: str,
        send: Callable[[Record], None] | None = None,
        clock: Clock | None = None,
        *,
        after: int = 0,
    ) -> None:
        self._send = self._open_durable(source) if send is None else send
        self._source, self._clock = source, clock or SystemClock()
        self._sequence = after

    def tell(self, pb_id: str, eb_id: str, subarray: int, kind: Any, state: Any, **more: Any) -> ProcessingBlock:
        """Report the present state of a block, and return the message.

        Parameters
        ----------
        pb_id, eb_id
            Ids of the processing block and of its execution block.
        subarray
            Number of the subarray.
        kind
            ``realtime`` or ``batch``.
        state
            STARTING, WAITING, RUNNING, FINISHED or FAILED.
        **more
            Further fields of ``processing-block.schema.json``, such as ``progress`` and ``text``.

        Raises
        ------
        ValueError
            The schema of the message forbids a value. Nothing was sent.
        BusError
            The bus has not confirmed the record. Call again.
        """
        now_us = self._clock.now_us()
        self._sequence = max(self._sequence + 1, int(now_us))
        block = ProcessingBlock(
            pb_id=pb_id,
            eb_id=eb_id,
            subarray=subarray,
            kind=kind,
            state=state,
            sequence=self._sequence,
            time=now_us,
            source=self._source,
            **more,
        )
        record = block_record(block)
        if isinstance(rejected := read_block(record), RecordRejected):
            raise ValueError(f"processing block {pb_id!r:.110}: {rejected.path}: {rejected.detail}")
        self._send(record)
        return block

    def remove(self, pb_id: str) -> None:
        """Remove a block that is no longer needed from the topic and from all counts."""
        self._send(Record(topic=BLOCKS, key=pb_id.encode(), value=None))


def newest_sequence(records: Iterable[Record], source: str) -> int:
    """Return the greatest `sequence` of a controller's states; 0 if there is none.

    Parameters
    ----------
    records
        All records of the topic `processing-blocks`, as from `KafkaBus.read_all`. Records that cannot be decoded are
        left out.
    source
        Name of the controller.

    Examples
    --------
    A controller that starts again continues after its earlier states, also if its clock has been set back:

    >>> earlier = open_bus("processing-controller").read_all("processing-blocks")
    >>> after = newest_sequence(earlier, "processing-controller")
    >>> blocks = BlockSource("processing-controller", after=after)
    """
    blocks = map(read_block, records)
    return max((one.sequence for one in blocks if isinstance(one, ProcessingBlock) and one.source == source), default=0)

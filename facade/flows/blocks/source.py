"""Reports the states of the processing blocks of a controller.

::

    blocks = BlockSource(lambda record: writer.send_durably(record, 5.0), "processing-controller", SystemClock())
    blocks.tell("pb-mvp01-20261123-00001", "eb-mvp01-20261123-00001", 1, "batch", "RUNNING", progress=20.0)
    blocks.remove("pb-mvp01-20261123-00001")

A controller that starts again goes on after its earlier states, also if its clock has been set back::

    after = newest_sequence(bus.read_all(BLOCKS), "processing-controller")
    blocks = BlockSource(send, "processing-controller", SystemClock(), after=after)
"""

from collections.abc import Callable, Iterable
from typing import Any

from facade.bus.port import Record
from facade.clock import Clock
from facade.flows.blocks.messages import BLOCKS, block_record, read_block
from facade.messages import ProcessingBlock
from facade.outcome import Rejected


class BlockSource:
    """Reports the processing blocks of one controller. One thread may use it; it stores nothing.

    Parameters
    ----------
    send
        Writes a record, and raises an error if the bus has not confirmed it; such as `Call.publish`.
    source
        Name of the controller.
    clock
        Gives the times of the states.
    after
        Continue numbering after this sequence, such as `newest_sequence` after a restart.
    """

    def __init__(self, send: Callable[[Record], None], source: str, clock: Clock, *, after: int = 0) -> None:
        self._send, self._source, self._clock = send, source, clock
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
        now_us = round(self._clock.now() * 1e6)
        self._sequence = max(self._sequence + 1, now_us)
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
        if isinstance(rejected := read_block(record), Rejected):
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
    """
    blocks = map(read_block, records)
    return max((one.sequence for one in blocks if isinstance(one, ProcessingBlock) and one.source == source), default=0)

"""What a controller tells the states of its processing blocks with.

::

    blocks = BlockSource(lambda record: writer.send_durably(record, 5.0), "processing-controller", SystemClock())
    blocks.tell("pb-mvp01-20261123-00001", "eb-mvp01-20261123-00001", 1, "batch", "RUNNING", progress=20.0)
    blocks.remove("pb-mvp01-20261123-00001")
"""

from collections.abc import Callable
from typing import Any

from facade.bus.port import Record
from facade.clock import Clock
from facade.flows.blocks.messages import BLOCKS, block_record, read_block
from facade.messages import ProcessingBlock
from facade.outcome import Rejected


class BlockSource:
    """The processing blocks of one controller, for one thread; it keeps nothing of them.

    Parameters
    ----------
    send
        Puts a record on the bus, and raises when it is not known to be there.
    source
        Name of the controller.
    """

    def __init__(self, send: Callable[[Record], None], source: str, clock: Clock) -> None:
        self._send, self._source, self._clock = send, source, clock
        self._sequence = 0

    def tell(self, pb_id: str, eb_id: str, subarray: int, kind: Any, state: Any, **more: Any) -> ProcessingBlock:
        """Tell the state that a block has now; see ``processing-block.schema.json`` for what more can be said.

        Raises
        ------
        ValueError
            The message's schema does not allow it; nothing was sent.
        BusError
            It is not known to be on the bus; call again.
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
        """Remove a block that nobody needs any more from the topic, and from all counts."""
        self._send(Record(topic=BLOCKS, key=pb_id.encode(), value=None))

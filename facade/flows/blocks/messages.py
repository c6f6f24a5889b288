"""The records on ``processing-blocks``; the key of a record is the id of its block."""

from typing import Final

import msgspec

from facade.bus.port import Record
from facade.codec.decode import BatchDecoder
from facade.messages import ProcessingBlock
from facade.outcome import INCONSISTENT, Rejected, Unused
from facade.printable import excerpt

BLOCKS = "processing-blocks"
"""Topic, by its name in the ICD."""

STARTING: Final = "STARTING"
WAITING: Final = "WAITING"
RUNNING: Final = "RUNNING"
FINISHED: Final = "FINISHED"
FAILED: Final = "FAILED"
STATES = (STARTING, WAITING, RUNNING, FINISHED, FAILED)
ENDED = frozenset({FINISHED, FAILED})

_decode = BatchDecoder(ProcessingBlock).decode_one


def read_block(record: Record) -> ProcessingBlock | Unused:
    """Return the block of a record, or why there is none; whatever the record is, this does not raise."""
    block = _decode(record.value)
    if isinstance(block, ProcessingBlock) and record.key != block.pb_id.encode():
        return Rejected(
            INCONSISTENT, "$.pb_id", f"expected the record's key {excerpt(repr(record.key)[:200])}, got {block.pb_id}"
        )
    return block


def block_record(block: ProcessingBlock) -> Record:
    """Return the record of a block."""
    return Record(topic=BLOCKS, key=block.pb_id.encode(), value=msgspec.json.encode(block))

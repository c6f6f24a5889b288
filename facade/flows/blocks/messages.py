"""The records on ``processing-blocks``; the key of a record is the id of its block."""

from typing import Final

import msgspec

from facade.bus.port import Record
from facade.codec.decode import BatchDecoder
from facade.codec.plausible import wrong_key, wrong_unit
from facade.messages import ProcessingBlock
from facade.outcome import Unused

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
    if not isinstance(block, ProcessingBlock):
        return block
    why = wrong_key(record.key, block.pb_id, "$.pb_id") or wrong_unit(block.time, record.timestamp_us, "$.time")
    return why or block


def block_record(block: ProcessingBlock) -> Record:
    """Return the record of a block."""
    return Record(topic=BLOCKS, key=block.pb_id.encode(), value=msgspec.json.encode(block))

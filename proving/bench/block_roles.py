"""Who publishes states of processing blocks, and who waits for the event that shows one."""

import json

import msgspec
import tango

from facade.bus.kafka.connection import Connection
from facade.bus.kafka.producer import KafkaWriter
from facade.bus.port import BusHealth, Record
from facade.clock import Clock
from facade.errors import InfraError
from facade.flows.blocks.source import BLOCKS, BlockSource
from facade.flows.commands.messages import COMMANDS
from proving.bench.hop_roles import SUBARRAY, Events, Sample, bare_connection
from proving.roles import RoleContext

STATES = ("STARTING", "WAITING", "RUNNING", "FINISHED")
OPEN = 60
"""Blocks that are open at once."""
_EB = "eb-bench-20261124-00001"
_NOT_COUNTED = 20
"""Samples before those that count."""
_FLUSH = 30.0


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """What publishing amounts to."""

    records: int
    seconds: float
    slipped: float
    """How much later than planned a record was published, at most [s]."""


def publish(context: RoleContext, *, records: int, rate: float, subarrays: int) -> Published:
    """Publish states at a steady rate: all blocks get from one state to the next, then come others.

    Parameters
    ----------
    records
        A multiple of the states of so many open blocks, so that all blocks finish.
    """
    clock, slipped = context.clock, 0.0
    writer = KafkaWriter(Connection(context.settings, clock=clock), health=BusHealth(), client="publisher")
    source = BlockSource("processing-controller", writer.send, clock)
    begin = clock.monotonic()
    for number in range(records):
        turn, block = divmod(number, OPEN)
        group, state = divmod(turn, len(STATES))
        late = clock.monotonic() - begin - number / rate
        slipped = max(slipped, late)
        clock.sleep(max(-late, 0.0))
        name = f"pb-bench-{group:05d}-{block:03d}"
        source.tell(name, _EB, 1 + block % subarrays, "batch", STATES[state], progress=25.0 * state)
    seconds = clock.monotonic() - begin
    writer.close(_FLUSH)
    if failed := writer.failures(BLOCKS):
        raise InfraError(f"{failed} of {records} records of {BLOCKS} were not delivered")
    return Published(records=records, seconds=seconds, slipped=slipped)


def fail_blocks(
    context: RoleContext, *, first: int, count: int, pause: float, bare: str, bare_prefix: str
) -> list[Sample]:
    """Publish blocks that fail one by one, each followed by a record through the bare bridge, and wait for the events.

    Parameters
    ----------
    first
        Number of the first block: those of an earlier client have other ones.
    pause
        Between two blocks [s].
    """
    clock, events = context.clock, Events(context.clock)
    events.subscribe(tango.DeviceProxy(f"tango://{context.tango_host}/{SUBARRAY}"), "newestFailure", _block)
    events.subscribe(tango.DeviceProxy(bare), "last", lambda text: f"bare {text.split()[0]}")
    writer = KafkaWriter(Connection(context.settings, clock=clock), health=BusHealth(), client="controller")
    source = BlockSource("processing-controller", writer.send, clock)
    records = KafkaWriter(bare_connection(context, bare_prefix), health=BusHealth(), client="bare")
    samples = []
    for number in range(first, first + _NOT_COUNTED + count):
        samples.append(_sample(events, source, records, number, clock))
        clock.sleep(pause)
    return samples[_NOT_COUNTED:]


def _sample(events: Events, source: BlockSource, records: KafkaWriter, number: int, clock: Clock) -> Sample:
    name, began = f"pb-failed-{number:06d}", clock.monotonic()
    source.tell(name, _EB, 1, "batch", "FAILED", text="made to fail")
    whole = events.wait(name)[0] - began
    began = clock.monotonic()
    records.send(Record(topic=COMMANDS, key=b"bench", value=str(number).encode()))
    came, text = events.wait(f"bare {number}")
    had, pushed = map(float, text.split()[1:])
    return Sample(whole, had - began, came - pushed)


def _block(text: str) -> str:
    return str(json.loads(text)["pb_id"])

"""States of processing blocks: from the bus to an event in a client, quiet and beside load."""

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import tango

from facade.flows.blocks.source import BLOCKS, BlockSource
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.kafka.producer import KafkaWriter
from facade.kernel.bus.port import BusHealth
from facade.kernel.errors import InfraError
from sdp_facade_lab.bench.hops import NOT_COUNTED, SUBARRAY, Sample, begin_bridge, hop_verdicts, through_bridge
from sdp_facade_lab.bench.load import NODES, RATE, stream
from sdp_facade_lab.bench.report import BarVerdict, BenchOutcome, at_most, flatness
from sdp_facade_lab.deployment import Deployment
from sdp_facade_lab.gauges import cores_used, cpu_of_all, in_words, resident
from sdp_facade_lab.roles import RoleContext
from sdp_facade_lab.testbed import Testbed

STATES = ("STARTING", "WAITING", "RUNNING", "FINISHED")
OPEN = 60
"""Blocks that are open at once."""
_EB = "eb-bench-20261124-00001"
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
        A multiple of `OPEN` times the number of states: then all blocks finish.
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


def fail_blocks(context: RoleContext, *, first: int, count: int, **bridge: Any) -> list[Sample]:
    """Publish blocks that fail one by one.

    Parameters
    ----------
    first
        Number of the first block: those of an earlier client have other ones.
    """
    writer = KafkaWriter(Connection(context.settings, clock=context.clock), health=BusHealth(), client="controller")
    source = BlockSource("processing-controller", writer.send, context.clock)

    def send(number: int) -> str:
        source.tell(name := f"pb-failed-{number:06d}", _EB, 1, "batch", "FAILED", text="made to fail")
        return name

    numbers, shown = range(first, first + NOT_COUNTED + count), (SUBARRAY, "newestFailure", _block)
    return through_bridge(context, send, numbers, shown=shown, **bridge)


def _block(text: str) -> str:
    return str(json.loads(text)["pb_id"])


PER_SECOND = 600.0
"""180,000 in five minutes (Table 1 of SDP memo 052)."""
RISE_BAR = 0.05
"""Of the memory of a device server, last quarter over the first."""
_SERVERS = ("subarray", "control")
_SETTLE = 4.0
_WITHIN = 60.0
_PAUSE = 0.01


def blocks(testbed: Testbed, *, quick: bool) -> BenchOutcome:
    turns, count = (50, 200) if quick else (750, 2000)
    records = turns * OPEN * len(STATES)
    parts: dict[str, Sequence[Sample]] = {}
    with testbed.system("blocks", nodes=NODES) as system, testbed.deployment("blocks-bare") as bare:
        task = {"count": count, **begin_bridge(system, bare)}
        testbed.progress.step(f"  {count} blocks, quiet")
        client = system.play(fail_blocks, ends=True, first=0, pause=_PAUSE, **task)
        parts["quiet"] = system.result(client, list[Sample])
        stream(system, RATE)
        testbed.progress.wait(_SETTLE, "warm-up")
        before = cpu_of_all(system)
        pause = 0.5 * records / PER_SECOND / count
        testbed.progress.step(f"  {count} blocks beside {records:,} states")
        client = system.play(fail_blocks, ends=True, first=1_000_000, pause=pause, **task)
        load = system.play(publish, ends=True, records=records, rate=PER_SECOND, subarrays=2)
        memory = _watch(system, load, 2 * records / PER_SECOND + _WITHIN)
        published = system.result(load, Published)
        cores = cores_used(before, cpu_of_all(system), published.seconds)
        behind = testbed.progress.wait_until(lambda: _shown(system) == records // len(STATES), _WITHIN)
        label = f"{PER_SECOND:g} states/s and {RATE:,.0f} notifications/s"
        parts[label] = system.result(client, list[Sample])
        system.processes.check()
    return BenchOutcome(
        what="state of a processing block on the bus -> event of newestFailure in another process",
        verdicts=(
            *(verdict for name, samples in parts.items() for verdict in hop_verdicts(name, samples)),
            at_most(f"time to publish {records:,} states", published.seconds, 1.01 * records / PER_SECOND, "s"),
            BarVerdict(
                "every block is counted once by SdpMaster",
                "no" if behind is None else f"yes, {behind:.1f} s after the last record",
                bar="yes",
                reached=behind is not None,
            ),
            *(_flat(name, samples) for name, samples in memory.items()),
        ),
        notes=(
            f"a state was published at most {published.slipped * 1e3:.0f} ms later than planned",
            in_words(cores),
        ),
    )


def _watch(system: Deployment, load: Any, seconds: float) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {name: [] for name in _SERVERS}

    def look() -> bool:
        for name, samples in found.items():
            samples.append(resident(system.processes[name].pid))
        return not load.is_alive

    system.progress.demand(look, seconds, "all states are published")
    return found


def _flat(name: str, samples: Sequence[float]) -> BarVerdict:
    rise = flatness(samples)
    text = "-" if rise is None else f"{rise:+.1%}, at most {max(samples):.0f} MB"
    what = f"memory of the device server {name}, last quarter over the first"
    return BarVerdict(what, text, bar=f"<= {RISE_BAR:.0%}", reached=None if rise is None else rise <= RISE_BAR)


def _shown(system: Deployment) -> int:
    """Return the finished blocks that SdpMaster shows; -1: it does not answer."""
    (master,) = system.devices("SdpMaster")
    try:
        return int(system.proxy(master).read_attribute("blocksFinished").value)
    except tango.DevFailed:
        return -1

"""The experiment of paper 001 on three open brokers, and one of them lost in the middle.

The rows are those of the sweep's series `001`, on a topic with three partitions, three replicas and two in sync. Then a
producer sends at half of the rate that was found, so that its delays are not those of a full queue. A broker is killed,
and started again. The paper loses no broker, and does not say how many replicas it has.
"""

import re
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Final, NamedTuple

import msgspec

from facade.infra import local
from facade.kernel.bus.kafka.admin import KafkaTopicWatch
from facade.kernel.errors import InfraError
from sdp_facade_lab import testbed as beds
from sdp_facade_lab.bench.report import BenchOutcome, machine, none_of
from sdp_facade_lab.bench.sweep import ROWS, SweepResult, SweepRow, Tools, consumed, finish, measure, topics_of
from sdp_facade_lab.deployment import Deployment
from sdp_facade_lab.testbed import Testbed

BEFORE, DURING, AFTER = "before", "while one broker is away", "after its return"
_LOST: Final = "kafka-2"
_SIZE: Final = 32
"""Of the messages while a broker is lost, and of all with `quick` [bytes]."""
_WINDOW = re.compile(
    r"(\d+) records sent, ([\d.]+) records/sec .*?([\d.]+) ms avg latency, ([\d.]+) ms max latency\.?$"
)


class SentWindow(NamedTuple):
    """What the producer says of about a second."""

    ended: float
    """Monotonic time [s]."""
    seconds: float
    messages: int
    """That were confirmed."""
    mean: float
    """Delay until the confirmation [ms]."""
    longest: float


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """Part of a run."""

    what: str
    seconds: float
    rate: float
    """[messages/s]."""
    mean: float
    longest: float
    """Delay until the confirmation [ms]."""

    def __str__(self) -> str:
        return (
            f"{self.what} ({self.seconds:.0f} s): {self.rate:,.0f}/s confirmed,"
            f" after {self.mean:,.1f} ms on average and {self.longest:,.0f} ms at most"
        )


def lost_broker(testbed: Testbed, *, quick: bool) -> BenchOutcome:
    rows = [msgspec.structs.replace(row, partitions=3) for row in ROWS if row.series == "001"]
    chosen = [row for row in rows if (row.size, row.in_batch) == (_SIZE, 20)]
    with (
        beds.testbed(testbed.folder / "lost-broker", testbed.progress, brokers=3, secure=False) as three,
        three.deployment("lost-broker") as deployment,
    ):
        tools, found = Tools(deployment, share=0.05 if quick else 1.0), list[SweepResult]()
        testbed.progress.step("  a run that does not count, so that the brokers have compiled what they run")
        measure(deployment, tools, chosen[-1], "warm-up.")
        for number, row in enumerate(chosen if quick else rows):
            found.append(measure(deployment, tools, row, f"p{number}."))
            testbed.progress.step(f"  {row.size} B: {found[-1].sent:,.0f}/s in, {found[-1].taken:,.0f}/s out")
        (whole,) = (one for one in found if one.row == chosen[-1])
        pace = round(whole.sent / 2)
        seen, kept, total = _lose(deployment, tools, whole.row, pace, 8.0 if quick else 20.0)
    return BenchOutcome(
        what=f"paper 001 on three brokers that share {machine().cores} cores, and one of them lost in the middle",
        verdicts=(none_of("messages on the topic less those sent", kept - total, f" of {total:,}"),),
        notes=(*in_words(found), f"at {pace:,}/s, half of that, one broker is killed:", *map(str, seen)),
        figures={"rows": found, "phases": seen},
    )


def _lose(
    deployment: Deployment, tools: Tools, row: SweepRow, pace: int, seconds: float
) -> tuple[list[Phase], int, int]:
    """Kill a broker while messages pass; return the phases, and how many messages there are and should be."""
    clock, state_dir, total = deployment.clock, deployment.endpoints.state_dir, round(pace * seconds * 5)

    def fault() -> tuple[float, float]:
        clock.sleep(seconds)
        began = clock.monotonic()
        local.stop_services(state_dir, _LOST, kill=True)
        clock.sleep(seconds)
        local.start_services(state_dir, _LOST)
        return began, clock.monotonic()

    with topics_of(deployment, row, "lost.") as connection, ThreadPoolExecutor(1) as thread:
        topic = connection.topic("main")
        deployment.progress.step(f"  {total:,} messages at {pace:,}/s; one broker is killed")
        consumer, producer = tools.consumer(topic, total), tools.producer(topic, row, total, pace=pace)
        reading = _windows(deployment, producer)
        windows = [*islice(reading, 1)]
        happens = thread.submit(fault)
        windows += reading
        finish(producer)
        lost, back = happens.result()
        consumed(finish(consumer), total)
        extent = KafkaTopicWatch(connection).extents(["main"])["main"]
    return phases(windows, lost, back), sum(end - begin for begin, end in extent.ranges.values()), total


def _windows(deployment: Deployment, producer: subprocess.Popen[str]) -> Iterator[SentWindow]:
    assert producer.stdout is not None
    for line in producer.stdout:
        if window := read_window(line, deployment.clock.monotonic()):
            yield window
        elif "max latency" not in line:
            deployment.progress.step(f"  {line.strip()}")


def read_window(line: str, ended: float) -> SentWindow | None:
    """Read a line of the producer; None: it says something else, such as the summary at the end."""
    if not (found := _WINDOW.search(line.strip())):
        return None
    messages, rate = int(found[1]), float(found[2])
    return SentWindow(ended, messages / rate if rate else 0.0, messages, float(found[3]), float(found[4]))


def phases(windows: Iterable[SentWindow], lost: float, back: float) -> list[Phase]:
    """Sum windows up before, while and after a broker was away; a window partly within the absence counts as within."""
    parts: dict[str, list[SentWindow]] = {BEFORE: [], DURING: [], AFTER: []}
    for one in windows:
        parts[BEFORE if one.ended <= lost else AFTER if one.ended - one.seconds >= back else DURING].append(one)
    if empty := [what for what, part in parts.items() if not any(one.messages for one in part)]:
        raise InfraError(f"no messages {' and '.join(empty)}: the machine is too slow for the length of the run")
    return [_sum_up(what, part) for what, part in parts.items()]


def _sum_up(what: str, part: Sequence[SentWindow]) -> Phase:
    seconds, messages = sum(one.seconds for one in part), sum(one.messages for one in part)
    return Phase(
        what=what,
        seconds=seconds,
        rate=messages / seconds,
        mean=sum(one.mean * one.messages for one in part) / messages,
        longest=max(one.longest for one in part),
    )


def in_words(found: Sequence[SweepResult]) -> Iterator[str]:
    """Set both runs of each row, separate and at once, beside the figures of the paper."""
    for apart, both in zip(found[::2], found[1::2], strict=True):
        ours = (apart.sent, apart.taken, both.sent, both.taken)
        names = ("in", "out", "both: in", "both: out")
        cells = (
            f"{name} {own:,.0f}/s (paper {theirs:,.0f})"
            for name, own, theirs in zip(names, ours, apart.row.paper, strict=True)
        )
        yield f"{apart.row.size} B, batches of {apart.row.in_batch}: {', '.join(cells)}"

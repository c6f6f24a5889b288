"""The tables of the papers, measured here by Kafka's own performance tools, one setting at a time.

`ROWS` has every combination of settings that is measured. Producers and consumers are the classes behind
`kafka-producer-perf-test`, `kafka-consumer-perf-test` and `kafka-e2e-latency`, from the jars of the broker.
"""

import os
import re
import resource
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from facade.admin.topics import create_topics, delete_topics
from facade.flows.telemetry.simulator.faults import Scenario
from facade.flows.telemetry.simulator.heaps import HeapStream
from facade.infra import local
from facade.infra.kafka import find_java, libraries
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.clock import as_time
from facade.kernel.errors import FacadeError, InfraError
from facade.kernel.icd.topic_model import Topic
from sdp_facade_lab import gauges
from sdp_facade_lab.bench.report import MEGA, BenchOutcome
from sdp_facade_lab.bench.sweep_tables import tables
from sdp_facade_lab.deployment import Deployment
from sdp_facade_lab.testbed import Testbed

KB, MB = 1_000, 1_000_000
LARGE = 100 * MB
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_PACKET, _VISIT = 135 * KB, 10_000
"""Size [bytes] and number of the alerts of a visit in DMTN-028."""
_MOST_MESSAGES, _MOST_BYTES, _MOST_BATCHES, _LEAST = 2_000_000, 400_000_000, 100_000, 10
_ONE_BY_ONE, _TIMED = 5_000, 500
"""Messages of a producer that waits for each of them, and messages whose delay is measured."""
_TEXT = 100_000
"""Messages up to this size are text of notifications, larger ones are random letters of the tool [bytes]."""
_MOST_PRODUCERS = 20
"""Each is a virtual machine of Java; paper 002 has up to 100."""
_WITHIN = 300.0
_COLUMNS = 10
"""Of the line of a consumer."""
_SENT = re.compile(
    r"(\d+) records sent, ([\d.]+) records/sec .*?([\d.]+) ms max latency, (\d+) ms 50th.* (\d+) ms 99th,"
    r" (\d+) ms 99.9th"
)
_DELAYS = re.compile(r"Percentiles: 50th = (\d+), 99th = (\d+), 99.9th = (\d+)")


class SweepRow(msgspec.Struct, frozen=True, kw_only=True):
    """One combination of settings; the defaults are the base point."""

    series: str
    size: int = 256
    """Of a message [bytes]."""
    partitions: int = 1
    producers: int = 1
    """That run."""
    paper_producers: int = 0
    """Of the paper, where it has more than run here."""
    groups: int = 1
    """Consumers that each read all of it."""
    codec: str = "none"
    acks: str = "all"
    linger: float = 5.0
    """[ms]."""
    batch: int = 1_000_000
    """Largest batch [bytes]; 0: the producer waits for each message before it sends the next."""
    messages: int = 0
    """0: as many as make 400 MB, at most 2,000,000."""
    unpacked: bool = False
    """Whether the broker unpacks batches, as on the topics of the ICD."""
    both: bool = False
    """Whether producers and consumers work at the same time."""
    paper: tuple[float, ...] = ()
    """Figures that the paper has for this row, in the order of `sweep_tables.TABLES`."""

    @property
    def in_batch(self) -> int:
        """Return how many messages are in a full batch."""
        return max(1, (self.batch - HEAD) // (self.size + OVERHEAD))


class SweepResult(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one row; 0: not measured."""

    row: SweepRow
    sent: float = 0.0
    """[messages/s]."""
    taken: float = 0.0
    """By each consumer [messages/s]."""
    behind: float = 0.0
    """From the end of the last producer to the end of the last consumer [s]."""
    delays: tuple[float, ...] = ()
    """p50, p99 and p99.9 [ms]: of calls that wait, or from one process to another."""
    stored: float = 0.0
    """Size of a message on the broker's disk [bytes]."""
    cpu: float = 0.0
    """Processor time of producers and broker for 1 GB [s]."""
    failure: str = ""


_MEMO_2 = {
    256: (80_448, 0.411, 206),
    KB: (47_277, 0.744, 1_260),
    MB: (260, 113, 4_940),
    10 * MB: (31, 2_680, 5_970),
}
_MEMO_3 = {
    (KB, 1): (83.39, 80.03),
    (10 * KB, 1): (9.322, 9.262),
    (100 * KB, 1): (0.907, 1.712),
    (MB, 1): (0.728, 1.397),
    (10 * MB, 1): (1.127, 1.057),
    (100 * KB, 20): (1.328, 109.399),
    (MB, 20): (0.896, 160.160),
}
_PAPER_001 = {
    (8, 20): (83_751, 66_109, 34_398, 36_916),
    (16, 20): (91_222, 78_498, 32_953, 36_418),
    (32, 20): (63_615, 79_900, 28_774, 32_488),
    (64, 20): (94_708, 80_500, 36_023, 38_342),
    (128, 20): (97_070, 74_859, 31_658, 36_189),
    (32, 1): (19_396, 11_027, 11_847, 8_177),
    (32, 50): (256_418, 106_197, 156_566, 84_577),
}
_PAPER_002 = {
    (1, 2, 1): (33.1, 0.16),
    (10, 2, 1): (7.46, 11.0),
    (100, 2, 1): (5.9, 14.9),
    (10, 4, 1): (6.26, 17.91),
    (10, 6, 1): (7.15, 21.14),
    (10, 11, 1): (8.82, 2068.0),
    (100, 11, 10): (3.75, 10.8),
}
_PAPER_004 = {
    4: (2_010_000, 4_255_000),
    32: (1_327_000, 1_611_000),
    200: (470_800, 463_500),
    1_024: (104_500, 100_900),
    10_240: (11_440, 10_010),
}
OVERHEAD, HEAD = 12, 61
"""Of a message in a batch, and of the batch [bytes]."""

ROWS: Sequence[SweepRow] = (
    *(SweepRow(series="size", size=size) for size in (256, KB, 10 * KB, 100 * KB, MB, 10 * MB, LARGE)),
    *(SweepRow(series="partitions", partitions=count) for count in (1, 2, 5, 10, 20, 50)),
    *(SweepRow(series="producers", partitions=count, producers=n) for count in (1, 20) for n in (1, 2, 4, 8, 20)),
    *(SweepRow(series="codec", size=size, codec=codec) for size in (256, MB) for codec in CODECS),
    SweepRow(series="codec", codec="lz4", unpacked=True),
    *(SweepRow(series="acks", acks=acks) for acks in ("0", "1", "all")),
    *(SweepRow(series="linger", linger=linger) for linger in (0.0, 1.0, 5.0, 20.0, 100.0)),
    *(
        SweepRow(
            series="sangrenel", size=size, partitions=20, producers=20, codec="snappy", acks="1", batch=0, paper=paper
        )
        for size, paper in _MEMO_2.items()
    ),
    SweepRow(series="perf-test", size=KB, codec="snappy", acks="0", paper=(205_000,)),
    SweepRow(series="perf-test", size=MB, acks="0", paper=(220,)),
    SweepRow(series="perf-test", size=10 * MB, acks="0", paper=(3.4,)),
    SweepRow(series="three", size=100, partitions=6, producers=3, paper=(2_020_000, 2_600_000)),
    *(
        SweepRow(series="segments", size=size, partitions=count, messages=LARGE // size, paper=paper)
        for (size, count), paper in _MEMO_3.items()
    ),
    *(
        SweepRow(series="001", size=size, batch=count * (size + OVERHEAD) + HEAD, both=both, paper=paper)
        for (size, count), paper in _PAPER_001.items()
        for both in (False, True)
    ),
    *(
        SweepRow(
            series="002", size=_PACKET, producers=min(producers, _MOST_PRODUCERS), groups=groups, partitions=partitions,
            messages=_VISIT, both=True, paper=paper,
            paper_producers=producers if producers > _MOST_PRODUCERS else 0,
        )
        for (producers, groups, partitions), paper in _PAPER_002.items()
    ),
    *(
        SweepRow(series="004", size=size, acks="1", batch=8_196 if size < 10_240 else 1_000_000, paper=paper)
        for size, paper in _PAPER_004.items()
    ),
)  # fmt: skip


def sweep(testbed: Testbed, *, quick: bool) -> BenchOutcome:
    """Measure the rows one after the other; quick: the first and the last one of each series, with a tenth of it."""
    rows = [one for name in dict.fromkeys(row.series for row in ROWS) for one in _of(name, quick=quick)]
    found: list[SweepResult] = []
    with testbed.deployment("sweep") as deployment:
        tools = Tools(deployment, share=0.1 if quick else 1.0)
        for number, row in enumerate(rows):
            try:
                found.append(measure(deployment, tools, row, f"p{number}."))
            except FacadeError as error:
                found.append(SweepResult(row=row, failure=str(error)))
            cells = " ".join(filter(None, _cells(found[-1])))
            deployment.progress.step(f"  {number + 1} of {len(rows)}: {row.series} {found[-1].failure or cells}")
    return BenchOutcome(
        what="the tables of the papers: messages through one broker, one setting at a time around a base point",
        verdicts=(),
        notes=tuple({f"{one.row.series}, {one.row.size} B: {one.failure}": None for one in found if one.failure}),
        figures={"rows": found},
        tables=tables(found),
    )


def _of(series: str, *, quick: bool) -> list[SweepRow]:
    rows = [row for row in ROWS if row.series == series]
    return rows[:: max(1, len(rows) - 1)] if quick else rows


class Tools:
    """Kafka's performance tools, as processes.

    Parameters
    ----------
    share
        Part of the messages that are sent.
    """

    def __init__(self, deployment: Deployment, *, share: float) -> None:
        self._deployment, self._share = deployment, share
        self._java = [find_java(), "-Xmx1g", "-cp", f"{libraries(deployment.progress.step)}/*"]
        self._start_cpu = 0.0
        """Processor time of a producer that sends next to nothing [s]."""

    def count(self, row: SweepRow) -> int:
        most = _ONE_BY_ONE if not row.batch else _MOST_MESSAGES
        count = row.messages or min(most, max(_LEAST, _MOST_BYTES // row.size))
        return max(2, round(count * self._share) // row.producers)

    def producer(self, topic: str, row: SweepRow, count: int, *, pace: int = -1) -> subprocess.Popen[str]:
        """Start a producer of some messages.

        Parameters
        ----------
        pace
            Most messages per second. Such a producer repeats what no broker confirmed, and says each second how it
            gets on. -1: as many as possible.
        """
        own: dict[str, object] = {"acks": row.acks, "compression.type": row.codec, "linger.ms": f"{row.linger:g}"}
        own |= {"batch.size": row.batch or 1, "max.request.size": 120 * MB, "enable.idempotence": str(pace > 0).lower()}
        # All messages are queued at once. By default, those are given up that are not confirmed after two minutes.
        own |= {"delivery.timeout.ms": round(_WITHIN * 1_000)}
        # With room for one message, a producer sends the next one when the one before is acknowledged.
        # More small batches than these would not fit into the heap of the tool, because each takes several objects.
        own |= {"buffer.memory": min(_MOST_BATCHES * row.batch, 256 * MB) if row.batch else row.size + KB}
        payload = ["--payload-file", str(self._payload(row.size))] if row.size <= _TEXT else ["--record-size", row.size]
        return self._run(
            "ProducerPerformance", "--topic", topic, "--num-records", count, "--throughput", pace, *payload,
            "--reporting-interval", 1_000, "--bootstrap-server", self._bootstrap, "--command-property",
            *(f"{name}={one}" for name, one in own.items()),
        )  # fmt: skip

    def consumer(self, topic: str, count: int) -> subprocess.Popen[str]:
        return self._run(
            "ConsumerPerformance", "--topic", topic, "--num-records", count, "--hide-header", "--fetch-size", 110 * MB,
            "--timeout", 60_000, "--bootstrap-server", self._bootstrap,
        )  # fmt: skip

    def delays(self, topic: str, row: SweepRow) -> tuple[float, ...]:
        """Return p50, p99 and p99.9 of messages from one process to another [ms]."""
        properties = self._deployment.folder / "latency.properties"
        properties.write_text(
            f"compression.type={row.codec}\nlinger.ms={row.linger:g}\nmax.request.size={120 * MB}\n"
            f"buffer.memory={256 * MB}\nmax.partition.fetch.bytes={120 * MB}\n"
        )
        count = max(_LEAST, round(min(_TIMED, _MOST_BYTES // row.size) * self._share))
        told = self._run("EndToEndLatency", self._bootstrap, topic, count, row.acks, row.size, properties)
        return tuple(map(float, _match(_DELAYS, finish(told)).groups()))

    def start_cpu(self, topic: str) -> float:
        """Return the processor time that the start of a producer takes [s]; measured once."""
        if not self._start_cpu:
            before = _children()
            finish(self.producer(topic, SweepRow(series="start"), 2))
            self._start_cpu = _children() - before
        return self._start_cpu

    @property
    def _bootstrap(self) -> str:
        return self._deployment.settings.bootstrap

    def _payload(self, size: int) -> Path:
        """Return a file of different messages of one size, which compress as notifications do."""
        file = self._deployment.folder / f"payload-{size}.txt"
        if not file.exists():
            batch = HeapStream(Scenario(nodes=4, rate=127_200.0, seed=1)).take(8_000, as_time(1_800_000_000))
            text = b" ".join(value.replace(b"\n", b" ") for value in batch.values if value is not None)
            count = max(1, min(1_000, 4_000_000 // size))
            step = (len(text) - size) // count
            file.write_bytes(b"\n".join(text[n * step : n * step + size] for n in range(count)))
        return file

    def _run(self, tool: str, *arguments: object) -> subprocess.Popen[str]:
        argv = [*self._java, f"org.apache.kafka.tools.{tool}", *map(str, arguments)]
        return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def measure(deployment: Deployment, tools: Tools, row: SweepRow, name: str) -> SweepResult:
    count = tools.count(row)
    with topics_of(deployment, row, name) as connection:
        topic, total = connection.topic("main"), count * row.producers
        start = tools.start_cpu(connection.topic("delays"))
        cpu, brokers = _children(), _cpu_of_brokers(deployment)
        consumers = [tools.consumer(topic, total) for _ in range(row.groups if row.both else 0)]
        told = [finish(one) for one in [tools.producer(topic, row, count) for _ in range(row.producers)]]
        ended = deployment.clock.monotonic()
        used = _children() - cpu - row.producers * start + _cpu_of_brokers(deployment) - brokers
        sent = [_match(_SENT, text) for text in told]
        calls = [tuple(float(one[group]) for group in (4, 5, 6)) for one in sent]
        taken = [finish(one) for one in consumers or [tools.consumer(topic, total) for _ in range(row.groups)]]
        files = (deployment.endpoints.state_dir / "kafka" / "data").glob(f"{topic}-*/*.log")
        delays = max(calls, key=lambda one: one[1])
        if row.batch and row.acks != "0":
            delays = tools.delays(connection.topic("delays"), row)
        return SweepResult(
            row=row,
            sent=sum(float(one[2]) for one in sent),
            taken=min(consumed(text, total) for text in taken),
            behind=deployment.clock.monotonic() - ended if row.both else 0.0,
            delays=delays,
            stored=sum(file.stat().st_size for file in files) / total,
            cpu=max(0.0, used) / (total * row.size / 1e9),
        )


def finish(process: subprocess.Popen[str]) -> str:
    try:
        output, _ = process.communicate(timeout=_WITHIN)
    except subprocess.TimeoutExpired:
        process.kill()
        raise InfraError(f"{process.args!s:.200}: expected its end within {_WITHIN:g} s, got nothing") from None
    if process.returncode:
        errors = [line for line in output.splitlines() if "Error" in line or "Exception" in line]
        why = " ".join((errors[-1] if errors else output[-200:]).split())
        raise InfraError(f"a tool of Kafka ended with {process.returncode}: {why}")
    return output


def _match(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    if not (found := [*pattern.finditer(text)]):
        raise InfraError(f"expected figures of a tool of Kafka, got: {text.strip()[-500:]}")
    return found[-1]


def consumed(text: str, total: int) -> float:
    """Return the messages per second of a consumer, without the time in which its group gets its partitions."""
    found = [figures for line in text.splitlines() if len(figures := line.split(", ")) == _COLUMNS]
    if not found or int(found[-1][4]) < total:
        raise InfraError(f"expected {total:,} messages at a consumer, got: {text.strip()[-500:]}")
    return float(found[-1][9])


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _cpu_of_brokers(deployment: Deployment) -> float:
    lines = local.status(deployment.endpoints.state_dir)
    return sum(gauges.cpu(line.pid) for line in lines if line.service in local.BROKERS and line.pid)


@contextmanager
def topics_of(deployment: Deployment, row: SweepRow, name: str) -> Iterator[Connection]:
    """Make the topics of a row; they are deleted at its end, or they would fill the disk."""
    settings = msgspec.structs.replace(deployment.settings, prefix=f"{deployment.settings.prefix}{name}")
    connection = Connection(settings, clock=deployment.clock)
    topic = Topic(
        description="A row of the sweep.",
        key="none",
        partitions=row.partitions,
        cleanup="delete",
        max_bytes=104_000_000,
        qos="bulk",
        config={} if row.unpacked else {"compression.type": "producer"},
    )
    made = {"main": topic, "delays": msgspec.structs.replace(topic, partitions=1)}
    create_topics(connection, made, replicas=deployment.settings.topic_replicas)
    try:
        yield connection
    finally:
        os.sync()  # unwritten data does not disturb the next row
        delete_topics(connection, made)


def _cells(found: SweepResult) -> list[str]:
    row, base = found.row, SweepRow(series="")
    changed = [name for name in row.__struct_fields__ if name not in ("series", "paper", "messages")]
    name = ", ".join(f"{one} {getattr(row, one)}" for one in changed if getattr(row, one) != getattr(base, one))
    figures = (found.sent, found.sent * row.size / MEGA, found.taken, found.behind)
    delays = ", ".join(f"{one:g}" for one in found.delays)
    return [name or "base", *(f"{one:,.4g}" for one in figures), delays, f"{found.stored:,.4g}", f"{found.cpu:.3g}"]

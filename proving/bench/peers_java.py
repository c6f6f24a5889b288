"""Kafka Streams and Flink on the same records: windows of 1 s by node, exactly-once; programs in `proving/java`.

A program writes `warm MONOTONIC_NS CPU_NS` when the records begin that count; those before are for the compiler of
its virtual machine. Its end is the moment at which what can be read committed accounts for all that was sent.
"""

from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec

from facade.errors import InfraError
from facade.icd.topic_model import Topic
from facade.infra import tools
from facade.infra.kafka import find_java
from facade.infra.processes import Process
from proving import gauges
from proving.bench.load import TOPIC
from proving.bench.peer_roles import PeerTiming
from proving.bench.raw import bare_values
from proving.deployment import Deployment

PEERS: Final = {"streams": "Kafka Streams 4.4.0", "flink": "Flink 2.3.0"}
"""What each folder of `proving/java` is in words."""

UNBOUNDED: Final = 0
"""Instead of a number of first records: the program reads without end."""

_SOURCES: Final = Path(__file__).parents[1] / "java"
_COMPILER: Final = "org.eclipse.jdt.internal.compiler.batch.Main"
_WITHIN: Final = 300.0
_OPTIONS: Final = (
    "-Xms512m",
    "-Xmx512m",
    "-XX:+UseParallelGC",  # the most work for the processor time
    # Flink's serializers look into classes of Java.
    *(f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in ("lang", "util", "time")),
)


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """What a program says of a node's window; later ones replace earlier ones."""

    node: int
    start: int
    """[ms since 1970]."""
    count: int
    sum: tuple[float, ...]
    """Of received, lost, late, flagged_fraction and latency."""


class Totals:
    """What the newest records of all windows add up to."""

    def __init__(self) -> None:
        self._windows: dict[tuple[int, int], Window] = {}
        self._decode = msgspec.json.Decoder(Window).decode
        self.count = 0

    def take(self, values: Iterable[bytes]) -> int:
        """Take records of the output topic, in their order; return how many notifications there are in all."""
        for value in values:
            window = self._decode(value)
            before = self._windows.get((window.node, window.start))
            self.count += window.count - (before.count if before else 0)
            self._windows[window.node, window.start] = window
        return self.count

    @property
    def sums(self) -> tuple[float, ...]:
        """Return the sums of all fields."""
        return tuple(map(sum, zip(*(window.sum for window in self._windows.values()), strict=True)))


def program(name: str, report: tools.Report) -> Path:
    """Return the folder with the jars and classes of a program, copied and compiled the first time.

    Raises
    ------
    InfraError
        Java or Maven is missing, Maven cannot get the jars, or the program does not compile.
    """
    sources = [_SOURCES / "common", _SOURCES / name]
    java, pom = find_java(), _SOURCES / name / "pom.xml"

    def install(folder: Path) -> None:
        mvn = tools.find_program("mvn", "it copies the jars of the peers once; on Debian `apt install maven`")
        report(f"  {PEERS[name]}: Maven copies its jars (once, 80 MB; 5 to 60 s)")
        copy = [mvn, "-q", "-B", "-Dstyle.color=never", "-f", str(pom), "dependency:copy-dependencies"]
        tools.run([*copy, f"-DoutputDirectory={folder / 'libs'}"], what=f"copying the jars that {pom} lists")
        jars = ":".join(map(str, sorted((folder / "libs").glob("*.jar"))))
        argv = [java, "-cp", jars, _COMPILER, "-17", "-proc:none", "-nowarn", "-cp", jars]
        argv += ["-d", str(folder / "classes"), *map(str, sources)]
        tools.run(argv, what=f"compiling {_SOURCES / name}")

    texts = [path.read_bytes() for folder in sources for path in sorted(folder.iterdir())]
    return tools.installed_once(f"peer-{name}-{sha256(b''.join(texts)).hexdigest()[:12]}", install, report)


def start(deployment: Deployment, name: str, first: int, run_name: object) -> tuple[Process, str]:
    """Start a program and return it with its output topic.

    Parameters
    ----------
    first
        Of the records: for so many it gets warm before the time begins. UNBOUNDED: it reads what comes, without end.
    run_name
        Tells its output topic from those of other runs.
    """
    folder = program(name, deployment.progress.step)
    target, settings = f"peers.{name}.{run_name}", deployment.settings
    output = Topic(description="windows", key="node", partitions=1, cleanup="delete", retention=3600.0, qos="telemetry")
    deployment.create_topics({target: output})
    argv = [find_java(), *_OPTIONS, "-cp", f"{folder}/classes:{folder}/libs/*", "Peer"]
    argv += [settings.bootstrap, settings.prefix + TOPIC, settings.prefix + target]
    argv += [str(first), str(deployment.folder / f"{target}.state")]
    return deployment.start(target, argv, ends=True), target


def run(deployment: Deployment, name: str, records: int, run_number: int) -> tuple[PeerTiming, tuple[float, ...]]:
    """Time a program over the topic's records, the second half of them; return also the sums that it found.

    Raises
    ------
    InfraError
        It ends early, takes too long, or its windows hold more than was sent.
    """
    process, target = start(deployment, name, records // 2, run_number)
    try:
        totals, ended, cpu = _await_all(deployment, process, target, records)
    finally:
        process.stop(10.0)
        deployment.processes.forget(target)
    began, cpu_before = warm(process.log.read_text())
    timing = PeerTiming(records=records - records // 2, seconds=ended - began, cpu=cpu - cpu_before)
    return timing, totals.sums


def newest(deployment: Deployment, target: str, seconds: float) -> dict[tuple[int, int], float]:
    """Read what is committed for a time; return when the last record of each window came.

    By node and start [s]; times are in Unix s. A record comes when the client gives it, at most 10 ms after the broker
    has it.
    """
    last: dict[tuple[int, int], float] = {}
    decode, limit = msgspec.json.Decoder(Window).decode, deployment.clock.monotonic() + seconds
    for values in bare_values(deployment.connection, target, 0, batch=1000):
        now = deployment.clock.now()
        last |= {(window.node, window.start // 1000): now for window in map(decode, values)}
        if deployment.clock.monotonic() > limit:
            break
    return last


def warm(log: str) -> tuple[float, float]:
    """Return when the records began that count, and the processor time until then, both [s].

    Raises
    ------
    InfraError
        The program did not say so.
    """
    for line in log.splitlines():
        match line.split():
            case ["warm", moment, cpu]:
                return int(moment) / 1e9, int(cpu) / 1e9
    raise InfraError(f"expected a line `warm MONOTONIC_NS CPU_NS`, got none; the log ends:\n{tools.tail(log)}")


def _await_all(deployment: Deployment, process: Process, target: str, records: int) -> tuple[Totals, float, float]:
    """Read what is committed until it is all; return it with the time and the processor time of the process [s]."""
    totals, limit, cpu = Totals(), deployment.clock.monotonic() + _WITHIN, 0.0
    for values in bare_values(deployment.connection, target, 0, batch=1000):
        cpu = gauges.cpu(process.pid) or cpu
        if totals.take(values) == records:
            return totals, deployment.clock.monotonic(), cpu
        if totals.count > records:
            raise InfraError(f"{target}: expected {records:,} notifications in its windows, got {totals.count:,}")
        if deployment.clock.monotonic() > limit:
            break
    raise InfraError(
        f"{target}: expected {records:,} notifications in its windows within {_WITHIN:g} s, got {totals.count:,};"
        f" its output ends:\n{process.tail()}"
    )

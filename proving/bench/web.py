"""The operator's page: from an alert on the bus to the stream of a browser, and the cost of many browsers."""

import asyncio
import re
import resource
import threading
import urllib.request
from contextlib import suppress
from typing import Any, Final

import msgspec

from facade.bus.kafka.connection import Connection
from facade.bus.kafka.producer import KafkaWriter
from facade.bus.port import BusHealth
from facade.clock import Clock
from facade.errors import InfraError
from facade.flows.alerts.source import AlertSource
from facade.infra.ports import choose_port
from proving.bench.load import RATE, stream
from proving.bench.report import BarVerdict, BenchOutcome, at_most, quantiles
from proving.deployment import Deployment
from proving.gauges import cpu, resident
from proving.testbed import Testbed

BROWSERS: Final = 2000
ALERT_BAR, CORE_BAR, MEMORY_BAR = 0.15, 0.2, 200.0
"""p99 from the bus to the stream [s], processor time [cores] and resident memory [MB] with all browsers."""
_CONDITION: Final = "streamLate"
_NUMBER = re.compile(rb"^id: [0-9a-f]+-(\d+)$", re.MULTILINE)
_BEGINS_WITHIN, _ANSWERS_WITHIN = 60.0, 30.0


def web(testbed: Testbed, *, quick: bool) -> BenchOutcome:
    """Measure alerts as one browser gets them, then the server with 2,000 browsers, one of which is frozen."""
    nodes, alerts, seconds = (4, 200, 10.0) if quick else (500, 1000, 30.0)
    with testbed.system("web", nodes=nodes, rack_size=500) as system:
        port = choose_port()
        process = system.launch("web", "web", "--port", port)
        testbed.progress.demand(lambda: f":{port}/" in process.tail(), _BEGINS_WITHIN, "the operator's page")
        stream(system, RATE)
        testbed.progress.step(f"  {alerts} alerts, one browser")
        delays = quantiles(_alerts(system, port, alerts))
        testbed.progress.step(f"  {BROWSERS} browsers for {seconds:g} s")
        cost = asyncio.run(_browsers(port, process.pid, seconds))
        system.processes.check()
    return BenchOutcome(
        name="web",
        what=f"the operator's page, {nodes} nodes at {RATE:,.0f} notifications/s",
        verdicts=(
            at_most("p99 from an alert on the bus to a browser", delays.p99 if delays else None, ALERT_BAR, "s"),
            at_most(f"processor time with {BROWSERS} browsers", cost.cores, CORE_BAR, "cores"),
            at_most(f"memory with {BROWSERS} browsers", cost.memory, MEMORY_BAR, "MB"),
            BarVerdict(
                what="frames that a browser missed, one browser being frozen",
                bar="0",
                found=f"{cost.missed} of {cost.frames}",
                reached=cost.missed == 0,
            ),
        ),
        figures={"delays": msgspec.to_builtins(delays), "cost": msgspec.to_builtins(cost)},
    )


class _Listener:
    """One browser, in a thread: notes when each alert came."""

    def __init__(self, port: int, clock: Clock) -> None:
        self.came: dict[str, float] = {}
        self.ready = threading.Event()
        self._news = threading.Condition()
        self._port, self._clock = port, clock
        threading.Thread(target=self._run, daemon=True).start()

    def wait(self, text: str) -> float:
        """Return when an alert with a text came [s], by the monotonic clock."""
        with self._news:
            if not self._news.wait_for(lambda: text in self.came, _ANSWERS_WITHIN):
                raise InfraError(f"the alert {text!r} did not reach the browser within {_ANSWERS_WITHIN:g} s")
            return self.came[text]

    def _run(self) -> None:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://localhost:{self._port}/events") as answer:
            for line in answer:
                if not line.startswith(b"data: "):
                    continue
                frame: dict[str, Any] = msgspec.json.decode(line[6:])
                now = self._clock.monotonic()
                with self._news:
                    self.came |= {one["alert"]["text"]: now for one in frame["alerts"] if one.get("alert")}
                    self._news.notify_all()
                self.ready.set()


def _alerts(system: Deployment, port: int, count: int) -> list[float]:
    clock = system.progress.clock
    listener = _Listener(port, clock)
    if not listener.ready.wait(_BEGINS_WITHIN):
        raise InfraError("the stream of the page gave nothing")
    writer = KafkaWriter(Connection(system.settings, clock=clock), health=BusHealth(), client="alerts")
    source = AlertSource("bench", writer, clock)
    delays = []
    for number in range(count):
        text, began = f"bench {number}", clock.monotonic()
        source.raise_alert(_CONDITION, "WARNING", text)
        delays.append(listener.wait(text) - began)
        clock.sleep(0.02)
    source.clear(_CONDITION, "done")
    writer.close(_ANSWERS_WITHIN)
    return delays


class _Cost(msgspec.Struct):
    """What the server needs for all browsers, and what they were given."""

    cores: float
    memory: float
    frames: int
    missed: int


async def _browsers(port: int, pid: int, seconds: float) -> _Cost:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 2 * BROWSERS), most))
    numbers: list[list[int]] = [[] for _ in range(BROWSERS)]
    frozen = await _connect(port)
    readers = [await _connect(port) for _ in numbers]
    tasks = [asyncio.create_task(_read(reader, seen)) for (reader, _), seen in zip(readers, numbers, strict=True)]
    await asyncio.sleep(5.0)  # snapshots
    before, used = [len(seen) for seen in numbers], cpu(pid)
    await asyncio.sleep(seconds)
    cores = (cpu(pid) - used) / seconds
    memory = resident(pid)
    for task in tasks:
        task.cancel()
    for _, writer in (frozen, *readers):
        writer.close()
    with suppress(asyncio.CancelledError):
        await asyncio.gather(*tasks, return_exceptions=True)
    frames = sum(len(seen) - least for seen, least in zip(numbers, before, strict=True))
    missed = sum(max(seen) - min(seen) + 1 - len(set(seen)) for seen in numbers if seen)
    return _Cost(cores=cores, memory=memory, frames=frames, missed=missed)


async def _connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("localhost", port)
    writer.write(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await writer.drain()
    return reader, writer


async def _read(reader: asyncio.StreamReader, seen: list[int]) -> None:
    rest = b""
    while chunk := await reader.read(65536):
        lines, _, rest = (rest + chunk).rpartition(b"\n")
        seen.extend(int(number) for number in _NUMBER.findall(lines))
        rest = rest[-100:]

"""The operator's page: from an alert on the bus to the screen, the cost of many browsers, and the page in one browser.

The browser is Debian's Chromium, driven by Playwright (`scripts/bootstrap clients` installs both).
"""

import asyncio
import re
import resource
import shutil
import threading
import urllib.request
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import msgspec

from facade.flows.alerts.source import AlertSource
from facade.infra.ports import choose_port
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.kafka.producer import KafkaWriter
from facade.kernel.bus.port import BusHealth
from facade.kernel.clock import Clock
from facade.kernel.errors import ConfigError, InfraError
from sdp_facade_clients.web import how_to_install
from sdp_facade_lab.bench.hops import Events
from sdp_facade_lab.bench.load import RATE, stream
from sdp_facade_lab.bench.report import BenchOutcome, at_most, none_of, quantiles
from sdp_facade_lab.deployment import Deployment
from sdp_facade_lab.gauges import cpu, resident
from sdp_facade_lab.testbed import Testbed

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

BROWSERS: Final = 2000
ALERT_BAR, CORE_BAR, MEMORY_BAR = 0.15, 0.2, 200.0
"""p99 from the bus to the screen [s], processor time [cores] and resident memory [MB] with all browsers."""
USABLE_BAR, FRAME_BAR, GROWTH_BAR = 1.5, 0.05, 1.1
"""Until a page shows its first values [s], longest frame [s], and growth of the memory of a tab in four hours."""
ALARMS: Final = 10_000
HOURS: Final = 8
_CONDITION: Final = "receiveOverrun"
"""It has no delay: the first alert makes the alarm."""
_NUMBER = re.compile(rb"^id: [0-9a-f]+-(\d+)$", re.MULTILINE)
_BEGINS_WITHIN, _ANSWERS_WITHIN = 60.0, 30.0


def web(testbed: Testbed, *, quick: bool) -> BenchOutcome:
    if how := how_to_install():
        raise ConfigError(f"the operator's page is not installed; install it by: {how}")
    nodes, alerts, seconds = (4, 50, 10.0) if quick else (1500, 300, 30.0)
    with testbed.system("web", nodes=nodes, rack_size=500) as system:
        port = choose_port()
        process = system.launch("web", "web", "--port", port)
        testbed.progress.demand(lambda: f":{port}/" in process.tail(), _BEGINS_WITHIN, "the operator's page")
        stream(system, RATE)
        testbed.progress.step(f"  {alerts} alerts, one browser")
        delays = quantiles(_alerts(system, port, alerts))
        with _browser() as browser:
            testbed.progress.step("  first page")
            usable = [_usable(browser, port, system.progress.clock) for _ in range(3 if quick else 9)]
            testbed.progress.step(f"  {alerts} alerts, on the screen")
            shown = quantiles(_on_the_screen(browser, system, port, alerts))
            testbed.progress.step(f"  {ALARMS:,} alarms")
            frame, task = _longest_frame(browser, port, 5.0 if quick else 20.0)
            testbed.progress.step(f"  {HOURS} hours in one tab, accelerated")
            memory = _memory(browser, port, 200 if quick else 3600)
        testbed.progress.step(f"  {BROWSERS} browsers for {seconds:g} s")
        cost = asyncio.run(browsers(port, process.pid, seconds))
        system.processes.check()
    growth = sum(memory[6:8]) / sum(memory[2:4])  # caches are full by then
    heap = f"{memory[0]:.1f} MB after one hour, {memory[-1]:.1f} MB after {len(memory)}"
    return BenchOutcome(
        what=f"the operator's page, {nodes} nodes at {RATE:,.0f} notifications/s",
        verdicts=(
            at_most("p99 from an alert on the bus to the screen", shown.p99 if shown else None, ALERT_BAR, "s"),
            at_most("median time until the first page shows values", median(usable), USABLE_BAR, "s"),
            at_most(f"longest frame while {ALARMS:,} alarms are scrolled and filtered", frame, FRAME_BAR, "s"),
            at_most("processor time of the page's longest task meanwhile, whatever else runs", task, FRAME_BAR, "s"),
            at_most("memory of the tab, hours 7 and 8 / hours 3 and 4", growth, GROWTH_BAR, ""),
            at_most(f"processor time with {BROWSERS} browsers", cost.cores, CORE_BAR, "cores"),
            at_most(f"memory with {BROWSERS} browsers", cost.memory, MEMORY_BAR, "MB"),
            none_of("frames that a browser missed, one browser being frozen", cost.missed, f" of {cost.frames}"),
        ),
        notes=(
            f"An alert reaches the event stream: {delays.text(1.0, 's')}." if delays else "",
            f"The tab has {heap}.",
        ),
        figures={
            "delays": msgspec.to_builtins(delays),
            "shown": msgspec.to_builtins(shown),
            "usable": usable,
            "memory": memory,
            "cost": msgspec.to_builtins(cost),
        },
    )


@contextmanager
def _browser() -> Iterator["Browser"]:
    from playwright.sync_api import sync_playwright  # scripts/bootstrap clients

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--enable-precise-memory-info"]
        )
        yield browser
        browser.close()


def _open(browser: "Browser", port: int, place: str = "", script: str = "") -> "Page":
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    if script:
        page.add_init_script(script)
    page.goto(f"http://localhost:{port}/#/{place}")
    return page


_VALUES = ".value.valid"


def _usable(browser: "Browser", port: int, clock: Clock) -> float:
    began = clock.monotonic()
    page = _open(browser, port)
    page.locator(_VALUES).first.wait_for()
    taken = clock.monotonic() - began
    page.context.close()
    return taken


_WATCHER = """() => {
  window.came = {};
  new MutationObserver(() => requestAnimationFrame(() => {
    for (const one of document.querySelectorAll("td small")) window.came[one.textContent] ??= Date.now() / 1000;
  })).observe(document.body, { childList: true, subtree: true, characterData: true });
}"""


def _on_the_screen(browser: "Browser", system: Deployment, port: int, number: int) -> list[float]:
    """Return the delays of alerts from the bus to the frame of the overview that shows them [s]."""
    clock = system.progress.clock
    page = _open(browser, port)
    page.locator(_VALUES).first.wait_for()
    page.evaluate(_WATCHER)
    writer = KafkaWriter(Connection(system.settings, clock=clock), health=BusHealth(), client="alerts")
    delays = []
    for at in range(number):
        name = f"screen-{at}"
        source, began = AlertSource(name, writer, clock), clock.now()
        source.raise_alert(_CONDITION, "CRITICAL", name)
        shown = page.wait_for_function("(name) => window.came[name]", arg=name, timeout=_ANSWERS_WITHIN * 1000)
        delays.append(shown.json_value() - began)
        source.clear(_CONDITION, "done")
        clock.sleep(0.3)  # alerts that come together are shown together, at most five times a second
    writer.close(_ANSWERS_WITHIN)
    page.context.close()
    return delays


_FRAMES = """async (seconds) => {
  const rows = document.querySelector(".rows"), filter = document.querySelector("input[type=search]");
  let longest = 0, last = performance.now();
  const end = last + 1000 * seconds;
  for (let at = 0; last < end; at++) {
    rows.scrollTop = (at * 997) % rows.scrollHeight;
    if (at % 30 === 0) {
      filter.value = at % 60 ? "" : `node/0${(at / 60) % 10}`;
      filter.dispatchEvent(new Event("input"));
    }
    const now = await new Promise(requestAnimationFrame);
    longest = Math.max(longest, now - last);
    last = now;
  }
  return longest / 1000;
}"""


def _longest_frame(browser: "Browser", port: int, seconds: float) -> tuple[float, float]:
    """Return the longest frame and task [s] while a list of alarms is scrolled, filtered, and changes."""
    turns = count()

    def answer(route: "Route") -> None:
        turn = next(turns)
        states, severities = ("UNACK", "ACKED", "RTNUN"), ("CRITICAL", "ALARM", "WARNING", "INFO")
        route.fulfill(
            json=[
                {"condition": _CONDITION, "source": f"node/{one:05d}", "state": states[(one + turn) % 3]}
                | {"severity": severities[one % 4], "text": f"turn {turn}", "occurrence": one, "raised_at": 1.0}
                for one in range(ALARMS)
            ]
        )

    page = _open(browser, port)
    page.route("**/api/alarms", answer)
    page.goto(f"http://localhost:{port}/#/alarms")
    page.get_by_text(f"Choose all {ALARMS}").wait_for()
    browser.start_tracing(page=page, categories=["toplevel"])
    longest: float = page.evaluate(_FRAMES, seconds)
    events = msgspec.json.decode(browser.stop_tracing())["traceEvents"]
    page.context.close()
    return longest, _longest_task(events)


def _longest_task(events: Sequence[dict[str, Any]]) -> float:
    """Return the processor time of the longest task of a page's own thread [s]."""
    pages = {(one["pid"], one["tid"]) for one in events if one.get("args", {}).get("name") == "CrRendererMain"}
    tasks = (one for one in events if one["name"].endswith("RunTask") and (one["pid"], one["tid"]) in pages)
    return max(one.get("tdur", 0) for one in tasks) / 1e6


_FASTER = """
delete window.SharedWorker; // the stream is to be in the tab
const usual = window.setInterval;
window.setInterval = (call, delay) => usual(call, delay / 50);
const Usual = window.EventSource;
window.EventSource = class extends Usual { constructor(...all) { super(...all); window.source = this; } };
"""
_HOUR = """async ([frames, places]) => {
  const values = Object.fromEntries([...Array(200).keys()].map((one) => [`figure${one}`, [0, "VALID", 0, ""]]));
  for (let at = 0; at < frames; at++) {
    if (at % (frames / places.length) === 0) location.hash = places[at / (frames / places.length)];
    const time = Date.now() / 1000;
    for (const one of Object.values(values)) [one[0], one[2]] = [at, time];
    const alerts = at % 10 ? [] : [{ sequence: 0, previous: 0, time, alert: { condition: "streamLate", source: `s${at}`,
      severity: "WARNING", state: "ACTIVE", text: "one" } }];
    const data = JSON.stringify({ time, values: { bench: values }, alerts });
    window.source.dispatchEvent(new MessageEvent("news", { data }));
    if (at % 4 === 0) await new Promise(requestAnimationFrame);
  }
}"""


def _memory(browser: "Browser", port: int, frames: int) -> list[float]:
    """Return the memory of one tab after each simulated hour [MB]: each has a frame a second, and shows five pages."""
    page = _open(browser, port, script=_FASTER)
    page.locator(_VALUES).first.wait_for()
    devices: dict[str, str] = page.request.get(f"http://localhost:{port}/api/site").json()["devices"]
    node, subarray = (next(one for one, kind in devices.items() if kind == name) for name in _SHOWN)
    places = ["#/", f"#/node/{node}", "#/alarms", f"#/subarray/{subarray}", "#/bus"]
    tools = page.context.new_cdp_session(page)
    found = []
    for _ in range(HOURS):
        page.evaluate(_HOUR, [frames, places])
        tools.send("HeapProfiler.collectGarbage")
        found.append(tools.send("Runtime.getHeapUsage")["usedSize"] / 1e6)
    page.context.close()
    return found


_SHOWN = ("SdpIngestNode", "SdpSubarray")


class _Listener:
    """One browser, in a thread: notes when each alert came, by its text."""

    def __init__(self, port: int, clock: Clock) -> None:
        self.events, self.ready = Events(clock), threading.Event()
        self._port, self._clock = port, clock
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://localhost:{self._port}/events") as answer:
            for line in answer:
                if not line.startswith(b"data: "):
                    continue
                frame: dict[str, Any] = msgspec.json.decode(line[6:])
                now = self._clock.monotonic()
                for alert in filter(None, (one.get("alert") for one in frame["alerts"])):
                    self.events.note(alert["text"], now, alert)
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
        delays.append(listener.events.wait(text)[0] - began)
        clock.sleep(0.02)
    source.clear(_CONDITION, "done")
    writer.close(_ANSWERS_WITHIN)
    return delays


class _Cost(msgspec.Struct):
    """The costs of the server with all browsers, and the frames that these got."""

    cores: float
    memory: float
    frames: int
    missed: int


async def browsers(port: int, pid: int, seconds: float, others: Sequence[Coroutine[Any, Any, None]] = ()) -> _Cost:
    """Measure the server while all browsers follow the devices, and `others` do something beside."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 2 * BROWSERS), most))
    numbers: list[list[int]] = [[] for _ in range(BROWSERS)]
    frozen = await _connect(port)
    readers = [await _connect(port) for _ in numbers]
    tasks = [asyncio.create_task(_read(reader, seen)) for (reader, _), seen in zip(readers, numbers, strict=True)]
    beside = [asyncio.create_task(one) for one in others]
    await asyncio.sleep(60.0 if others else 5.0)  # snapshots, and files that are read for the first time
    before, used = [len(seen) for seen in numbers], cpu(pid)
    await asyncio.sleep(seconds)
    cores = (cpu(pid) - used) / seconds
    memory = resident(pid)
    for failed in (task for task in beside if task.done()):
        failed.result()
    tasks += beside
    for task in tasks:
        task.cancel()
    for _, writer in (frozen, *readers):
        writer.close()
    with suppress(asyncio.CancelledError):
        await asyncio.gather(*tasks, return_exceptions=True)
    frames = sum(len(seen) - least for seen, least in zip(numbers, before, strict=True))
    return _Cost(cores=cores, memory=memory, frames=frames, missed=missed_frames(numbers))


def missed_frames(numbers: Iterable[Sequence[int]]) -> int:
    """Return how many frames browsers have missed, by the numbers that each got; one that got none missed one."""
    return sum(max(seen) - min(seen) + 1 - len(set(seen)) if seen else 1 for seen in numbers)


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

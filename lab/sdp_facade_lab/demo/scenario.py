"""The scenario of a demo: start, observation, faults, stop, account, limits of time. Always, all is cleared away."""

import signal
import sys
import traceback
from collections.abc import Iterable
from contextlib import ExitStack
from itertools import chain
from typing import Any, Final, NamedTuple

import tango
from rich.markup import escape

from facade.flows.telemetry.simulator.ingest import HeapReport, read_report
from facade.infra.ports import HOST, choose_port
from facade.kernel.clock import Clock
from facade.kernel.console import Console
from facade.kernel.errors import FacadeError
from facade.kernel.icd.model import Icd
from facade.kernel.names import SERVER
from facade.kernel.reading import Quality
from facade.kernel.runtime.stopping import terminable
from facade.sdp.files import write_json
from sdp_facade_clients.events import EventPulse, EventRecords, find_servers
from sdp_facade_clients.terminal import BUS, MASTER, NODE
from sdp_facade_clients.watch import Watch
from sdp_facade_lab.demo.archiving import ArchiveScenario
from sdp_facade_lab.demo.bare import DEVICE
from sdp_facade_lab.demo.cli import handlers
from sdp_facade_lab.demo.flows import AlertChapter, BlockChapter, CommandChapter, MirrorChapter, TableChapter
from sdp_facade_lab.demo.options import BASELINE, FLOWS_WITHIN, INVALID_SLACK, DemoOptions
from sdp_facade_lab.demo.report import (
    FAULTS,
    DemoReport,
    print_account,
    print_accounts,
    print_alerts,
    print_commands,
    print_figures,
    print_orders,
    print_verdict,
)
from sdp_facade_lab.demo.services import alive, are_ours
from sdp_facade_lab.demo.shipping import LogChapter, require_scram
from sdp_facade_lab.demo.staying import start_page, stay
from sdp_facade_lab.demo.system import SIMULATOR, WORKERS, Demo, set_up
from sdp_facade_lab.demo.timing import notification_latency, window_latency, without_rereads
from sdp_facade_lab.deployment import answers
from sdp_facade_lab.heap_account import DRAINS_WITHIN, LATE, disagreements, settled_account, waited
from sdp_facade_lab.progress import ProgressLine
from sdp_facade_lab.supervisor import Supervisor

_INTRODUCTION = (
    "Kafka, a Tango database, the device servers and a simulated SDP run on this machine{killed}. In the end every"
    " record,{commands} alert and table that was sent is compared with what Tango clients were shown."
)
_NEARLY = 0.95
"""Part of the rate asked for from which on it counts as reached."""
_INTERRUPTED = 130
"""Exit code of a program that Ctrl-C has ended, as shells have it."""


def play(options: DemoOptions, console: Console, clock: Clock) -> int:
    """Play the whole demo and give the exit code."""
    progress = ProgressLine(console, clock, live=options.live)
    progress.patience = options.patience
    killed = f", and {_kills(options)} of its processes are killed" if options.kills else ""
    commands = " command," if options.controller else ""
    console.print(_INTRODUCTION.format(killed=killed, commands=commands), highlight=False)
    report = DemoReport(
        began=clock.now(),
        nodes=options.nodes,
        rate=options.rate,
        seconds=options.seconds,
        patience=options.patience,
    )
    stack, processes = ExitStack(), Supervisor(options.folder, clock)
    interrupted = False
    with terminable():
        try:
            _play(set_up(options, processes, progress, report, stack), stack)
        except KeyboardInterrupt:
            interrupted = True
            progress.step(f"interrupted{progress.waiting_for and f' while waiting: {progress.waiting_for}'}")
        except FacadeError as error:
            words = processes.last_words()
            report.failures.append(f"{error}\nthe logs end with:\n{words}" if words else str(error))
        except tango.DevFailed as failed:
            report.failures.append(f"Tango: {failed.args[0].desc} ({failed.args[0].reason})")
        except Exception:  # a mistake of ours: it has a report as well
            report.failures.append(f"unexpected:\n{traceback.format_exc()}")
        finally:
            with handlers(signal.SIG_IGN):  # half a clean-up would be none
                _clear_away(options, progress, report, processes, stack)
    if interrupted:
        for failure in report.failures:
            console.print(f"[bold red]failure:[/bold red] {escape(failure)}")
        return _INTERRUPTED
    report.elapsed = progress.elapsed
    write_json(options.report_file, report)
    if report.failures:
        console.print(f"logs: {options.folder}", highlight=False, soft_wrap=True)
    print_verdict(console, report, options.report_file)
    return 1 if report.failures else 0


def _kills(options: DemoOptions) -> int:
    return 4 + 2 * options.controller + options.logs + (options.mirror and options.controller)


def _play(demo: Demo, stack: ExitStack) -> None:
    if demo.options.logs and demo.deployment.endpoints.security is not None:
        require_scram(demo.progress.step)
    archive = ArchiveScenario(demo, stack) if demo.options.archive else None
    if archive is not None:
        archive.begin()
    _start_servers(demo)
    host, side = demo.deployment.tango_host, demo.tango_side
    served = {device for names in side.devices.values() for device in names}
    servers = {name: sorted(served & known.keys()) for name, known in find_servers(host, SERVER).items()}
    pulse = EventPulse(host, {name: mine for name, mine in servers.items() if mine}, demo.clock)
    stack.callback(pulse.close)
    watch = Watch(demo.recorder, side.devices, pulse, tango_host=host, icd=demo.icd, clock=demo.clock)
    page = start_page(demo) if demo.options.stay else ""
    if page:
        demo.progress.step(page)
    with demo.progress.view(watch):
        _tell(demo, stack)
        if demo.options.stay:
            stay(demo, stack, page)
        _stop(demo)
    _judge(demo)
    if archive is not None:
        archive.end()
    demo.report.logins = sorted(demo.deployment.logins)


def _start_servers(demo: Demo) -> None:
    progress, side = demo.progress, demo.tango_side
    demo.start_servers()
    progress.check = demo.processes.check
    instances = ", ".join(demo.deployment.instances)
    controller = " a controller," if demo.options.controller else ""
    controller = " controllers of SDP, its processing and its workers," if demo.options.orders else controller
    progress.step(f"started: 2 aggregate workers,{controller} the device servers {instances}")
    Machine(demo).measure(judges=False)
    devices = [device for names in side.devices.values() for device in names]
    took = progress.demand(
        lambda: all(side.read(device, ["State"]) for device in devices), FLOWS_WITHIN, "all devices answer"
    )
    for device_class, names in side.devices.items():
        entries = demo.icd.classes[device_class].attributes
        attributes = ["State", *(entry.name for entry in entries if entry.is_pushed)]
        for device in names:
            demo.recorder.subscribe(device, attributes)
    progress.step(f"all {len(devices)} devices answer after {took:.1f} s; subscribed to all their attributes")


class Scene(NamedTuple):
    """A step of the story."""

    chapter: str
    does: str
    """Method of the chapter."""
    at: float = 0.0
    """Part of the simulator's time that has passed at the earliest."""
    is_fault: bool = False
    """Whether something is killed: it is left out with ``--no-kills``."""


SCENARIO: Final = (
    Scene("heaps", "begin"),
    Scene("logs", "begin"),
    Scene("mirror", "begin"),
    Scene("machine", "measure"),
    Scene("commands", "begin"),
    Scene("commands", "kill_server", is_fault=True),
    Scene("mirror", "kill", is_fault=True),
    Scene("commands", "kill_controller", is_fault=True),
    Scene("machine", "measure", is_fault=True),
    Scene("alerts", "play"),
    Scene("tables", "begin"),
    Scene("tables", "kill", is_fault=True),
    Scene("logs", "kill", is_fault=True),
    Scene("heaps", "kill_worker", at=1 / 3, is_fault=True),
    Scene("machine", "measure", at=2 / 3, is_fault=True),
    Scene("heaps", "kill_server", at=2 / 3, is_fault=True),
    Scene("commands", "account", at=1.0),
    Scene("alerts", "account", at=1.0),
    Scene("tables", "account", at=1.0),
    Scene("blocks", "account", at=1.0),
    Scene("mirror", "account", at=1.0),
    Scene("logs", "account", at=1.0),
)
"""The story of a demo. Scenes of chapters that its options leave out are left out."""


def _tell(demo: Demo, stack: ExitStack) -> None:
    """Play the story; the account of the heaps follows when the simulator has been stopped."""
    options, progress, begin = demo.options, demo.progress, demo.clock.now()
    alerts = AlertChapter(demo)
    stack.callback(alerts.close)
    chapters: dict[str, Any] = {"heaps": HeapChapter(demo), "machine": Machine(demo), "alerts": alerts}
    chapters["tables"] = TableChapter(demo)
    if options.logs:
        chapters["logs"] = logs = LogChapter(demo)
        stack.callback(logs.close)
    if options.mirror:
        chapters["mirror"] = MirrorChapter(demo)
    if options.controller:
        chapters["commands"] = CommandChapter(demo)
    if options.blocks:
        chapters["blocks"] = BlockChapter(demo, alerts.entries)
    for scene in SCENARIO:
        if (chapter := chapters.get(scene.chapter)) is not None and (options.kills or not scene.is_fault):
            progress.wait(max(begin + scene.at * options.seconds - demo.clock.now(), 0.0))
            getattr(chapter, scene.does)()
    if options.stay:
        alerts.tidy_up()


def _stop(demo: Demo) -> None:
    report, progress, clock = demo.report, demo.progress, demo.clock
    if not demo.processes[SIMULATOR].is_alive:
        progress.step("the simulator ended before, so nobody knows all that was sent: records are not compared")
        return
    demo.processes.stop(SIMULATOR)
    sent = report.sent = read_report(demo.sent_file)
    ended = sent.began + sent.elapsed
    progress.step(
        f"simulator stopped: {sent.expected.consumed:,} notifications sent in {sent.elapsed:.1f} s,"
        f" {sent.heaps / sent.elapsed:,.0f} heaps/s of {sent.rate:,.0f}/s asked for{_short_of(sent)}{waited(sent)}"
    )
    stale_after = max(demo.icd.classes[name].stale_after for name in (NODE, MASTER))

    def look() -> bool:
        if report.drained_after is None and demo.tango_side.is_drained(sent.expected.consumed):
            report.drained_after = clock.now() - ended
            progress.step(f"everything sent is accounted for, {report.drained_after:.1f} s after the last record")
        # While records are still read, values are fresh and must not be invalid.
        if report.drained_after is not None and report.invalid_after is None and demo.tango_side.stale():
            report.invalid_after = clock.now() - ended
        return report.drained_after is not None and report.invalid_after is not None

    progress.wait_until(look, DRAINS_WITHIN + stale_after + INVALID_SLACK, "all is accounted for and stale")
    if report.invalid_after is not None:
        progress.step(f"all windowed attributes are ATTR_INVALID, {report.invalid_after:.1f} s after the last record")


def _short_of(sent: HeapReport) -> str:
    less = sent.heaps < _NEARLY * sent.rate * sent.elapsed
    return ": as many as this machine can, with all else that runs on it" if less else ""


def _judge(demo: Demo) -> None:
    report, console = demo.report, demo.progress.console
    sent = report.sent
    wrong: list[str] = []
    if sent is not None:
        report.account = settled_account(demo.progress, sent, demo.tango_side.found)
        wrong = disagreements(sent, report.account)
        report.late = demo.tango_side.found().bus.get(LATE, 0)
    others = chain(*report.accounts.values())
    report.balanced = sent is not None and not wrong and all(line.agrees for line in others)
    measure(demo, demo.recorder.records())
    report.failures += [*wrong, *passed_limits(demo.options, demo.icd, report)]
    write_json(demo.options.report_file, report)  # all that was found, whatever comes while it is cleared away
    if sent is not None:
        print_account(console, report, sent)
    if demo.options.controller:
        print_commands(console, report)
        print_orders(console, report)
    print_alerts(console, report)
    print_accounts(console, report, "tables", "blocks", "mirror", "logs")
    print_figures(console, report)


def _clear_away(
    options: DemoOptions, progress: ProgressLine, report: DemoReport, processes: Supervisor, stack: ExitStack
) -> None:
    progress.check = lambda: None
    try:
        stack.close()
    except FacadeError as error:
        report.failures.append(f"clearing away: {error}")
    except Exception:  # the stack has done all the rest nevertheless
        report.failures.append(f"clearing away:\n{traceback.format_exc()}")
    if left := [*processes.alive(), *(alive(options) if are_ours(options) else ())]:
        report.failures.append(f"clearing away: expected nothing left running, got {', '.join(left)}")
    else:
        progress.step("nothing of this demo is left running")


_RENEWED = 10
"""Devices whose subscriptions are renewed at once; with more of them Tango's own ten seconds are sooner over."""
_DOWN = 1.0
"""How long the worker is away [s]."""


class HeapChapter:
    """Nodes send notifications; a worker and a device server are killed meanwhile."""

    def __init__(self, demo: Demo) -> None:
        self._demo, self._progress, self._side = demo, demo.progress, demo.tango_side

    def begin(self) -> None:
        options, begin, report = self._demo.options, self._demo.clock.now(), self._demo.report
        self._demo.start_simulator()
        self._progress.step(
            f"simulator: {options.nodes} nodes, {options.rate:,.0f} heaps/s each, with some of every fault"
        )
        Machine(self._demo).measure(judges=False)
        self._progress.demand(lambda: self._side.windows_since(begin), FLOWS_WITHIN, "all nodes show a value")
        report.first_values_after = after = self._demo.clock.now() - begin
        self._progress.step(f"all nodes show values, {after:.1f} s after the simulator's start")

    def kill_worker(self) -> None:
        """Kill a worker in the middle of a transaction."""
        victim, bus = f"aggregate-{WORKERS - 1}", self._side.devices[BUS][0]

        def is_back(_: float, started: float) -> bool:
            return self._side.windows_since(started) and self._demo.deployment.value(bus, "workersAlive") == WORKERS

        self._demo.crash("worker", victim, victim, is_back, lambda: self._progress.wait(_DOWN))

    def kill_server(self) -> None:
        """Kill a device server of ingest nodes."""
        victim = next(name for name in self._demo.deployment.instances if name.startswith("ingest-"))
        before = self._side.totals()

        def is_back(began: float, _: float) -> bool:
            totals = self._side.totals()
            whole = all(totals.get(node, -1) >= total for node, total in before.items())
            return whole and self._side.windows_since(began)

        self._demo.crash("server", victim, f"the device server {victim}", is_back)
        self._demo.recorder.renew(list(self._side.nodes.values())[:_RENEWED])


_BASELINE_NAME: Final = "baseline"
_ANSWERS_WITHIN: Final = 120.0
"""Longest wait for the bare server [s]: how slow the machine is, is not known before."""


def slowness(baselines: Iterable[float]) -> float:
    """Return the factor on limits of time; a machine that is faster than need be has no shorter ones.

    Parameters
    ----------
    baselines
        How long the bare server took each time [s]. The longest counts: the load of a machine changes.
    """
    return max([1.0, *(one / BASELINE for one in baselines)])


class Machine:
    """The machine of a demo: how slow it is."""

    def __init__(self, demo: Demo) -> None:
        self._demo = demo

    def measure(self, *, judges: bool = True) -> None:
        """Start a bare server, wait for its first answer, and end it; waits last the longer, the longer that took.

        Parameters
        ----------
        judges
            Whether limits are judged by it as well. While all else starts, the machine is slower than later on.
        """
        demo, port = self._demo, choose_port()
        address, device = f"{HOST}:{port}", f"{DEVICE}#dbase=no"
        began = demo.clock.monotonic()
        demo.deployment.start(_BASELINE_NAME, [sys.executable, "-m", "sdp_facade_lab.demo.bare", str(port)], login=None)
        what = "baseline: a device server with nothing in it answers"
        demo.progress.demand(lambda: answers(address, device), _ANSWERS_WITHIN, what)
        took = demo.clock.monotonic() - began
        demo.processes.kill(_BASELINE_NAME)
        if judges:
            demo.report.baselines.append(took)
            demo.report.slowness = slowness(demo.report.baselines)
        demo.progress.patience = max(demo.progress.patience, slowness([took]))
        demo.progress.step(f"{what} {took:.2f} s after its start")


def measure(demo: Demo, records: EventRecords) -> None:
    nodes = {*demo.tango_side.nodes.values()} & records.keys()
    rates = [
        event
        for node in nodes
        for event in without_rereads(records[node]["heapRate"].events)
        if event.quality is not Quality.INVALID
    ]
    demo.report.notification_latency = notification_latency(rates)
    demo.report.window_latency = window_latency(rates)


def passed_limits(options: DemoOptions, icd: Icd, report: DemoReport) -> list[str]:
    patience = max(options.patience, report.slowness)
    stale_after = max(icd.classes[name].stale_after for name in (NODE, MASTER)) + INVALID_SLACK
    if report.drained_after is not None:
        stale_after += max(report.drained_after - INVALID_SLACK, 0.0)  # until then the values were fresh
    limits: list[tuple[str, float | None, float]] = []
    if report.sent is not None or report.drained_after is not None:
        limits += [
            ("everything sent is accounted for", report.drained_after, DRAINS_WITHIN),
            ("silent attributes are ATTR_INVALID", report.invalid_after, stale_after),
        ]
    for name, took in report.recoveries.items():
        fault = FAULTS[name]
        limits.append((f"{fault.process} killed and started again: {fault.seen}", took, fault.within))
    times = f" ({patience:.2f} times the limit)" if patience > 1 else ""
    failures = [
        f"{what}: expected within {limit * patience:.1f} s{times}, got {'never' if value is None else f'{value:.2f} s'}"
        for what, value, limit in limits
        if value is None or value > limit * patience
    ]
    return failures + ["events: expected some of heapRate, got none"] * (report.notification_latency is None)

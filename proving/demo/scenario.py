"""The scenario of a demo: start, observation, faults, stop, account, limits of time. Always, all is cleared away."""

import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from typing import Final

import tango
from rich.markup import escape

from clients.events import DeviceEvent, EventPulse, EventRecords, find_servers
from clients.terminal import MASTER, NODE
from clients.timing import LASTING, RATE_SLACK
from clients.watch import Watch
from facade.clock import Clock
from facade.console import Console
from facade.errors import FacadeError
from facade.exports.tango_db import SERVER
from facade.files import write_json
from facade.flows.telemetry.simulator.ingest import HeapReport, read_report
from facade.icd.model import Icd
from facade.infra.ports import HOST, choose_port
from facade.reading import Quality
from facade.runtime.stopping import terminable
from proving.demo.account import LATE, BalanceLine, DemoCounts, compare, disagreements, waited
from proving.demo.archiving import ArchiveScenario
from proving.demo.bare import DEVICE
from proving.demo.flows import (
    AlarmScenario,
    CalibrationScenario,
    MirrorScenario,
    account_for_blocks,
    account_for_commands,
    account_for_orders,
    await_cascade,
)
from proving.demo.options import (
    BASELINE,
    DRAINS_WITHIN,
    FLOWS_WITHIN,
    INVALID_SLACK,
    SERVER_SETTLES,
    WORKER_SETTLES,
    DemoOptions,
)
from proving.demo.report import (
    RECOVERIES,
    DemoReport,
    print_account,
    print_accounts,
    print_alerts,
    print_commands,
    print_figures,
    print_orders,
    print_verdict,
)
from proving.demo.services import alive, are_ours
from proving.demo.shipping import LogScenario, require_scram
from proving.demo.staying import start_page, stay
from proving.demo.system import CONTROLLER, SIMULATOR, SUBARRAY_SERVER, WORKERS, Demo, set_up
from proving.demo.timing import (
    Interval,
    event_rates,
    longest_delay,
    notification_latency,
    window_latency,
    without_rereads,
)
from proving.deployment import answers
from proving.progress import ProgressLine
from proving.supervisor import Supervisor

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
            with _undisturbed():
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
        _run(demo, stack)
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
    measure_baseline(demo, judges=False)
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


def _run(demo: Demo, stack: ExitStack) -> None:
    options, progress, clock = demo.options, demo.progress, demo.clock
    begin = clock.now()
    demo.start_simulator()
    progress.step(f"simulator: {options.nodes} nodes, {options.rate:,.0f} heaps/s each, with some of every fault")
    measure_baseline(demo, judges=False)
    progress.demand(lambda: demo.tango_side.windows_since(begin), FLOWS_WITHIN, "all nodes show a value")
    demo.report.first_values_after = clock.now() - begin
    progress.step(f"all nodes show values, {demo.report.first_values_after:.1f} s after the simulator's start")

    alerts, calibration = AlarmScenario(demo), CalibrationScenario(demo)
    stack.callback(alerts.close)
    logs = LogScenario(demo) if options.logs else None
    mirror = MirrorScenario(demo) if options.mirror else None
    if logs is not None:
        stack.callback(logs.close)
        logs.begin()
    if mirror is not None:
        mirror.begin()
    measure_baseline(demo)
    if options.controller:
        demo.start_observation()
        progress.step(f"TM begins to observe with {', '.join(demo.tango_side.subarrays)}")
        if options.orders:
            await_cascade(demo)

    def wait_for(part: float) -> None:
        progress.wait(max(begin + part * options.seconds - clock.now(), 0.0))

    if options.kills and options.controller:  # all while TM commands
        progress.check = demo.check_observation
        _kill_subarray_server(demo)
        if mirror is not None:
            mirror.kill()
        _kill_controller(demo)
        progress.check = demo.processes.check
        measure_baseline(demo)
    alerts.play()
    calibration.begin()
    if options.kills:
        calibration.kill()
        if logs is not None:
            logs.kill()
        wait_for(1 / 3)
        _kill_worker(demo)
        wait_for(2 / 3)
        measure_baseline(demo)
        _kill_server(demo)
    wait_for(1.0)
    if options.controller:
        account_for_commands(demo)
        if options.orders:
            account_for_orders(demo)
    progress.wait_until(alerts.settled, FLOWS_WITHIN, "the client has each alert")
    alerts.account()
    calibration.account()
    if options.blocks:
        account_for_blocks(demo, alerts.entries)
    if mirror is not None:
        mirror.account()
    if logs is not None:
        logs.account()
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


def settled_account(progress: ProgressLine, sent: HeapReport, found: Callable[[], DemoCounts]) -> list[BalanceLine]:
    """Compare until every figure agrees: a lag is of a moment, and a worker that has just joined writes once more."""
    lines: list[BalanceLine] = []

    def agrees() -> bool:
        lines[:] = compare(sent, found())
        return all(line.agrees for line in lines)

    progress.wait_until(agrees, DRAINS_WITHIN, "the figures agree")
    return lines


def _judge(demo: Demo) -> None:
    report, console = demo.report, demo.progress.console
    sent = report.sent
    wrong: list[str] = []
    if sent is not None:
        report.account = settled_account(demo.progress, sent, demo.tango_side.found)
        wrong = disagreements(sent, report.account)
        report.late = demo.tango_side.found().bus.get(LATE, 0)
    flows = (
        report.order_account,
        report.alert_account,
        report.table_account,
        report.block_account,
        report.mirror_account,
        report.log_account,
    )
    accounts = (*report.command_account, *chain(*flows))
    report.balanced = sent is not None and not wrong and all(line.agrees for line in accounts)
    measure(demo, demo.recorder.records())
    report.failures += [*wrong, *passed_limits(demo.options, demo.icd, report)]
    write_json(demo.options.report_file, report)  # all that was found, whatever comes while it is cleared away
    if sent is not None:
        print_account(console, report, sent)
    if demo.options.controller:
        print_commands(console, report)
        print_orders(console, report)
    print_alerts(console, report)
    print_accounts(console, report.table_account, "every table")
    print_accounts(console, report.block_account, "every processing block")
    print_accounts(console, report.mirror_account, "every value of the telescope")
    print_accounts(console, report.log_account, "every log and metric")
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


def _kill_worker(demo: Demo) -> None:
    """Kill a worker in the middle of a transaction, start it again, and wait for its output."""
    victim = f"aggregate-{WORKERS - 1}"
    began = demo.clock.now()

    def is_back(_: float, started: float) -> bool:
        return demo.tango_side.windows_since(started) and _workers(demo) == WORKERS

    demo.report.worker_recovery = demo.restart(victim, victim, is_back, "data flow", lambda: demo.progress.wait(_DOWN))
    settled = demo.clock.now() + WORKER_SETTLES * demo.progress.patience
    demo.report.restarts.append((began, settled))
    demo.progress.step(
        f"all nodes show data from after that, {demo.report.worker_recovery:.2f} s after the start of {victim}"
    )


def _kill_server(demo: Demo) -> None:
    """Kill a device server of ingest nodes, start it again at once, and wait for its values."""
    side = demo.tango_side
    victim = next(name for name in demo.deployment.instances if name.startswith("ingest-"))
    before, killed = side.totals(), demo.clock.now()

    def is_back(began: float, _: float) -> bool:
        totals = side.totals()
        return all(totals.get(node, -1) >= total for node, total in before.items()) and side.windows_since(began)

    demo.report.server_recovery = demo.restart(
        victim, f"the device server {victim}", is_back, "totals and a new window"
    )
    demo.recorder.renew(list(side.nodes.values())[:_RENEWED])
    demo.report.restarts.append((killed, demo.clock.now() + SERVER_SETTLES))
    demo.progress.step(f"its totals and a new window are back, {demo.report.server_recovery:.2f} s after the start")


def _kill_subarray_server(demo: Demo) -> None:
    """Kill the device server of the subarrays while a command is executed, and start it again at once."""
    side, command = demo.tango_side, "AssignResources"
    first = _await_execution(demo, command)
    demo.report.subarray_recovery = demo.restart(
        SUBARRAY_SERVER,
        f"the device server {SUBARRAY_SERVER} while {first} executes {command}",
        lambda *_: side.subarrays_known(),
        "state of the subarrays",
    )
    demo.recorder.renew(side.subarrays)
    demo.progress.step(
        f"the subarrays' state and commands are back, {demo.report.subarray_recovery:.2f} s after the start"
    )


def _kill_controller(demo: Demo) -> None:
    """Kill the controller in the middle of a command that must not be repeated, and start it again at once."""
    command = "Configure"
    demo.configure_file.touch()
    first = _await_execution(demo, command)
    demo.report.controller_recovery = demo.restart(
        CONTROLLER,
        f"the controller while {first} executes {command}",
        lambda *_: not demo.tango_side.executes(first, command),
        f"an outcome of {command} of {first}",
    )
    demo.progress.step(f"the command has its outcome, {demo.report.controller_recovery:.2f} s after the start")


def _await_execution(demo: Demo, command: str) -> str:
    """Wait until the first subarray executes a command, and return its device."""
    first = demo.tango_side.subarrays[0]
    demo.progress.demand(lambda: demo.tango_side.executes(first, command), FLOWS_WITHIN, f"{first} executes {command}")
    return first


def _workers(demo: Demo) -> int:
    shown = demo.tango_side.bus("workersAlive").get("workersAlive")
    return 0 if shown is None or shown.value is None else int(shown.value)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Ignore signals: half a clean-up would be none."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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


def measure_baseline(demo: Demo, *, judges: bool = True) -> None:
    """Start the bare server, wait for its first answer, and end it; waits last the longer, the longer that took.

    Parameters
    ----------
    judges
        Whether limits are judged by it as well. While all else starts, the machine is slower than later on.
    """
    port, report = choose_port(), demo.report
    address, device = f"{HOST}:{port}", f"{DEVICE}#dbase=no"
    began = demo.clock.monotonic()
    demo.deployment.start(_BASELINE_NAME, [sys.executable, "-m", "proving.demo.bare", str(port)], login=None)
    what = "baseline: a device server with nothing in it answers"
    demo.progress.demand(lambda: answers(address, device), _ANSWERS_WITHIN, what)
    took = demo.clock.monotonic() - began
    demo.processes.kill(_BASELINE_NAME)
    if judges:
        report.baselines.append(took)
        report.slowness = slowness(report.baselines)
    demo.progress.patience = max(demo.progress.patience, slowness([took]))
    demo.progress.step(f"{what} {took:.2f} s after its start")


def measure(demo: Demo, records: EventRecords) -> None:
    report = demo.report
    events = {
        (device, attribute): without_rereads(record.events)
        for device, attributes in records.items()
        for attribute, record in attributes.items()
    }
    nodes = set(demo.tango_side.nodes.values())
    rates = [
        event
        for (device, attribute), of_one in events.items()
        if device in nodes and attribute == "heapRate"
        for event in of_one
        if event.quality is not Quality.INVALID
    ]
    report.notification_latency = notification_latency(rates)
    report.window_latency = window_latency(rates)
    report.window_latency_undisturbed = window_latency(_outside(rates, report.restarts))
    report.pace = event_rates(events, _shortest(demo), report.restarts)


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
    recoveries = ((what, getattr(report, name), limit) for name, (what, limit) in RECOVERIES.items())
    limits += [one for one in recoveries if one[1] is not None]
    times = f" ({patience:.2f} times the limit)" if patience > 1 else ""
    failures = [
        f"{what}: expected within {limit * patience:.1f} s{times}, got {'never' if value is None else f'{value:.2f} s'}"
        for what, value, limit in limits
        if value is None or value > limit * patience
    ]
    return failures + _timing_limits(report, patience, options.patience)


def _timing_limits(report: DemoReport, patience: float, rate_patience: float) -> list[str]:
    found = report.pace
    if report.notification_latency is None:
        return ["events: expected some of heapRate, got none"]
    if found is None:
        return []
    failures = []
    held_up = longest_delay(found, report.window_latency_undisturbed, patience)
    if found.bunch.is_too_close(held_up / found.bunch.shortest):
        failures.append(
            f"events of {found.closest}: expected at least {found.bunch.shortest:g} s from one to the next"
            f" (one may be held up on its way, by {held_up:.2f} s), got {found.bunch}"
        )
    if found.busiest_gaps >= LASTING and found.busiest_rate > found.busiest_limit * RATE_SLACK * rate_patience:
        failures.append(
            f"events of {found.busiest}: expected at most {found.busiest_limit:g}/s, got {found.busiest_rate:.2f}/s"
        )
    return failures


def _shortest(demo: Demo) -> dict[tuple[str, str], float]:
    return {
        (device, entry.name): (entry.sampling or device_class.sampling).shortest
        for name, device_class in demo.icd.classes.items()
        for device in demo.tango_side.devices.get(name, ())
        for entry in device_class.attributes
    }


def _outside(events: Sequence[DeviceEvent], intervals: Sequence[Interval]) -> list[DeviceEvent]:
    return [event for event in events if not any(a <= event.received <= b for a, b in intervals)]

"""The story of a demo: start, observation, accidents, stop, account. Whatever happens, all is cleared away."""

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType

import tango
from rich.console import Console
from rich.markup import escape

from clients.events import EventRecorder
from clients.scene import MASTER, NODE
from clients.watch import Watch
from facade.clock import Clock
from facade.errors import FacadeError
from facade.flows.telemetry.simulator.report import Report, read_report
from proving.demo import baseline as baseline
from proving.demo import faults as accidents
from proving.demo import verdict
from proving.demo.account import compare, disagreements
from proving.demo.alerting import AlertStory
from proving.demo.calibrating import CalibrationStory
from proving.demo.observing import account_for_commands
from proving.demo.options import DRAINS_WITHIN, FLOWS_WITHIN, INVALID_SLACK, DemoOptions
from proving.demo.processes import Processes
from proving.demo.report import (
    DemoReport,
    print_account,
    print_accounts,
    print_alerts,
    print_commands,
    print_figures,
    print_verdict,
)
from proving.demo.show import Show
from proving.demo.stage import SIMULATOR, Stage, set_stage, what_to_try

_INTRODUCTION = (
    "Kafka, a Tango database, the device servers and a simulated SDP run on this machine{killed}. In the end every"
    " record, command, alert and table that was sent is compared with what Tango clients were shown."
)
_EVENTS_KEPT = 10_000
_NEARLY = 0.95
"""Part of the rate asked for from which on it counts as reached."""
_INTERRUPTED = 130
"""Exit code of a program that Ctrl-C has ended, as shells have it."""


def play(options: DemoOptions, console: Console, clock: Clock) -> int:
    """Play the whole demo and give the exit code."""
    show = Show(console, clock, live=options.live)
    show.patience = options.patience
    killed = ", and six of its processes are killed" if options.kills else ""
    show.console.print(_INTRODUCTION.format(killed=killed), highlight=False)
    report = DemoReport(began=clock.now(), nodes=options.nodes, rate=options.rate, seconds=options.seconds)
    stack, processes = ExitStack(), Processes(options.folder, clock)
    interrupted = False
    with _sigterm_as_interrupt():
        try:
            _play(set_stage(options, processes, show.step, clock, stack), show, report, clock, stack)
        except KeyboardInterrupt:
            interrupted = True
            show.step("interrupted")
        except FacadeError as error:
            words = processes.last_words()
            report.failures.append(f"{error}\nthe logs end with:\n{words}" if words else str(error))
        except tango.DevFailed as failed:
            report.failures.append(f"Tango: {failed.args[0].desc} ({failed.args[0].reason})")
        finally:
            with _undisturbed():
                _clear_away(show, report, processes, stack)
    if interrupted:
        for failure in report.failures:
            console.print(f"[bold red]failure:[/bold red] {escape(failure)}")
        return _INTERRUPTED
    report.elapsed = show.elapsed
    report.write(options.report_file)
    if report.failures:
        console.print(f"logs: {options.folder}", highlight=False, soft_wrap=True)
    print_verdict(console, report, options.report_file)
    return 1 if report.failures else 0


def _play(stage: Stage, show: Show, report: DemoReport, clock: Clock, stack: ExitStack) -> None:
    report.topic_prefix = stage.settings.prefix
    recorder = EventRecorder(stage.endpoints.tango_host, clock, keep=_EVENTS_KEPT)
    stack.callback(recorder.close)
    _start_servers(stage, show, recorder)
    watch = Watch(recorder, stage.tango_side.devices, tango_host=stage.endpoints.tango_host, icd=stage.icd, clock=clock)
    with show.view(watch):
        _run(stage, show, report, recorder, clock, stack)
        if stage.options.stay:
            _stay(stage, show)
        _stop(stage, show, report, clock)
    _judge(stage, show, report, recorder)


def _start_servers(stage: Stage, show: Show, recorder: EventRecorder) -> None:
    stage.start_servers()
    show.check = stage.processes.check
    show.step(f"started: 2 aggregate workers, a controller, the device servers {', '.join(stage.instances)}")
    took = show.demand(
        lambda: all(stage.tango_side.read(device, ["State"]) for device in _all_devices(stage)),
        FLOWS_WITHIN,
        "all devices answer",
    )
    for device_class, devices in stage.tango_side.devices.items():
        entries = stage.icd.classes[device_class].attributes
        attributes = ["State", *(entry.name for entry in entries if entry.is_pushed)]
        for device in devices:
            recorder.subscribe(device, attributes)
    show.step(f"all {len(_all_devices(stage))} devices answer after {took:.1f} s; subscribed to all their attributes")


def _run(stage: Stage, show: Show, report: DemoReport, recorder: EventRecorder, clock: Clock, stack: ExitStack) -> None:
    options = stage.options
    begin = clock.now()
    stage.start_simulator()
    show.step(f"simulator: {options.nodes} nodes, {options.rate:,.0f} heaps/s each, with some of every fault")
    show.demand(lambda: stage.tango_side.windows_since(begin), FLOWS_WITHIN, "all nodes show a value")
    report.first_values_after = clock.now() - begin
    show.step(f"all nodes show values, {report.first_values_after:.1f} s after the simulator's start")

    story, calibration = AlertStory(stage, show, clock), CalibrationStory(stage, show, clock)
    stack.callback(story.close)
    baseline.measure(stage, show, report, clock)
    stage.start_observation()
    show.step(f"TM begins to observe with {', '.join(stage.tango_side.subarrays)}")

    def wait_for(part: float) -> None:
        show.wait(max(begin + part * options.seconds - clock.now(), 0.0))

    if options.kills:
        accidents.kill_subarray_server(stage, show, report, recorder, clock)
        accidents.kill_controller(stage, show, report, clock)
        baseline.measure(stage, show, report, clock)
    story.play(report, recorder, kill=options.kills)
    calibration.begin()
    if options.kills:
        calibration.kill(report)
        wait_for(1 / 3)
        accidents.kill_worker(stage, show, report, clock)
        wait_for(2 / 3)
        baseline.measure(stage, show, report, clock)
        accidents.kill_server(stage, show, report, recorder, clock)
    wait_for(1.0)
    account_for_commands(stage, show, report, clock)
    show.wait_until(story.settled, FLOWS_WITHIN)
    story.account(report)
    calibration.account(report, recorder)


def _stay(stage: Stage, show: Show) -> None:
    show.console.print(what_to_try(stage), highlight=False, soft_wrap=True, markup=False)
    try:
        while True:
            show.wait(3600.0)
    except KeyboardInterrupt:
        show.step("the account follows; Ctrl-C once more leaves it out")


def _stop(stage: Stage, show: Show, report: DemoReport, clock: Clock) -> None:
    stage.processes.stop(SIMULATOR)
    sent = report.sent = read_report(stage.sent_file)
    ended = sent.began + sent.elapsed
    show.step(
        f"simulator stopped: {sent.sent:,} records sent in {sent.elapsed:.1f} s,"
        f" {sent.heaps / sent.elapsed:,.0f} heaps/s of {sent.rate:,.0f}/s asked for{_short_of(sent)}"
    )
    side = stage.tango_side
    stale_after = max(stage.icd.classes[name].stale_after for name in (NODE, MASTER))

    def look() -> bool:
        if report.drained_after is None and side.is_drained(sent.sent):
            report.drained_after = clock.now() - ended
            show.step(f"everything sent is accounted for, {report.drained_after:.1f} s after the last record")
        # While records are still read, values are fresh and must not be invalid.
        if report.drained_after is not None and report.invalid_after is None and side.stale():
            report.invalid_after = clock.now() - ended
        return report.drained_after is not None and report.invalid_after is not None

    show.wait_until(look, DRAINS_WITHIN + stale_after + INVALID_SLACK)
    if report.invalid_after is not None:
        show.step(f"all windowed attributes are ATTR_INVALID, {report.invalid_after:.1f} s after the last record")


def _short_of(sent: Report) -> str:
    less = sent.heaps < _NEARLY * sent.rate * sent.elapsed
    return ": as many as this machine can, with all else that runs on it" if less else ""


def _judge(stage: Stage, show: Show, report: DemoReport, recorder: EventRecorder) -> None:
    sent = report.sent
    if sent is None:
        return
    found = stage.tango_side.found()
    recorder.close()
    report.account = compare(sent, found)
    wrong = disagreements(sent, report.account)
    accounts = (*report.command_account, *report.alert_account, *report.table_account)
    report.balanced = not wrong and all(line.agrees for line in accounts)
    verdict.measure(stage, report, recorder.records())
    report.failures += [*wrong, *verdict.passed_limits(stage, report)]
    print_account(show.console, sent, report.account)
    print_commands(show.console, report)
    print_alerts(show.console, report)
    print_accounts(show.console, report.table_account, "every table")
    print_figures(show.console, report)


def _clear_away(show: Show, report: DemoReport, processes: Processes, stack: ExitStack) -> None:
    show.check = lambda: None
    try:
        stack.close()
    except FacadeError as error:
        report.failures.append(f"clearing away: {error}")
    if left := processes.alive():
        report.failures.append(f"clearing away: expected nothing left running, got {', '.join(left)}")
    else:
        show.step("nothing of this demo is left running")


def _all_devices(stage: Stage) -> list[str]:
    return [device for devices in stage.tango_side.devices.values() for device in devices]


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    def on_signal(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Ignore signals: half a clean-up would be none."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

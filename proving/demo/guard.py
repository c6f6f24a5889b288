"""The demo plays in a process of its own: whatever ends that, its guard says so and clears everything away.

A Tango client runs in the player, and a crash in a library ends a process without a word of Python. The guard uses none
of these libraries; it waits, hands signals on, and where the player did not come to its end it writes the report.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from facade.clock import Clock, SystemClock
from facade.console import Console
from facade.errors import FacadeError
from facade.files import write_json
from facade.infra import tools
from proving.demo.options import DemoOptions
from proving.demo.report import DemoReport
from proving.demo.services import stop_ours
from proving.demo.tables import print_verdict
from proving.supervisor import Supervisor

_ENDING = (signal.SIGINT, signal.SIGTERM)
_PATIENCE = 2
"""Signals that are handed on; whoever sends a third one wants an end, also of a player that hangs in a library."""


def console() -> Console:
    """Return where a demo prints: piped output has no width of its own, and the tables need more than the usual 80."""
    out = Console()
    return out if out.is_terminal else Console(width=120)


def guarded(options: DemoOptions, console: Console) -> int:
    """Play a demo in a process of its own, and give the exit code."""
    clock = SystemClock()
    began = clock.now()
    task = msgspec.json.encode(options, enc_hook=str).decode()
    # In a group of its own: a Ctrl-C reaches it once, through the guard.
    player = subprocess.Popen(
        [sys.executable, "-m", "proving.demo", str(os.getpid()), task], stdin=subprocess.DEVNULL, process_group=0
    )
    came: list[int] = []

    def hand_on(number: int, _: Any) -> None:
        came.append(number)
        player.send_signal(number if len(came) <= _PATIENCE else signal.SIGKILL)

    with _handlers(hand_on):
        code = player.wait()
    if code >= 0:
        return code
    with _handlers(signal.SIG_IGN):
        return _finish(options, console, clock, began, f"the demo's own process was ended by {_name(-code)}")


def _finish(options: DemoOptions, console: Console, clock: Clock, began: float, reason: str) -> int:
    """Clear away what a player left that did not come to its end, and report."""
    report = _left_report(options, began)
    report.failures.insert(0, f"{reason}; where it was is printed above, what ran for it is stopped now")

    def say(text: str) -> None:
        console.print(f"[dim]{clock.now() - began:6.1f} s[/dim]  {text}", highlight=False, soft_wrap=True)

    try:
        with tools.locked(options.folder / "demo.lock"):
            left = Supervisor(options.folder, clock).stop_left_over()
            say(f"{reason}; stopped: {', '.join(left) or 'nothing was left'}")
            stop_ours(options, say)
    except FacadeError as error:
        report.failures.append(f"clearing away: {error}")
    report.elapsed = clock.now() - began
    write_json(options.report_file, report)
    console.print(f"logs: {options.folder}", highlight=False, soft_wrap=True)
    print_verdict(console, report, options.report_file)
    return 1


def _left_report(options: DemoOptions, began: float) -> DemoReport:
    """Return the report as far as the player had written it."""
    try:
        report = msgspec.json.decode(options.report_file.read_bytes(), type=DemoReport)
    except (OSError, msgspec.MsgspecError):
        pass
    else:
        if report.began >= began:  # not one of an earlier demo
            return report
    return DemoReport(began=began, nodes=options.nodes, rate=options.rate, seconds=options.seconds)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@contextmanager
def _handlers(handler: Any) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in _ENDING}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)

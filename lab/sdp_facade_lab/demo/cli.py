"""The sub-command ``demo``: the guard of a process of its own in which the demo plays.

A Tango client runs in the player, and a crash in a library ends a process without a word of Python. The guard uses none
of these libraries. It waits, hands signals on, and writes the report if the player did not come to its end.

``python -m sdp_facade_lab.demo.cli GUARD OPTIONS`` is the player: the guard's process id, and the options as JSON.
"""

import ctypes
import faulthandler
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from facade.flows.tables.solution import require_arrow
from facade.infra import tools
from facade.infra.local import DEFAULT_STATE_DIR
from facade.kernel.clock import Clock, SystemClock
from facade.kernel.console import Console
from facade.kernel.errors import FacadeError
from facade.kernel.runtime.stopping import end_process
from facade.sdp.files import write_json
from sdp_facade_lab.demo.options import DemoOptions
from sdp_facade_lab.demo.report import DemoReport, print_verdict
from sdp_facade_lab.demo.services import stop_ours
from sdp_facade_lab.supervisor import Supervisor

_ENDING = (signal.SIGINT, signal.SIGTERM)
_PATIENCE = 2
"""Number of signals that are handed on. The third one kills the player, which may hang in a library."""
_PR_SET_PDEATHSIG: Final = 1
"""Linux's prctl: a signal for the time when the parent is gone."""


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
        [sys.executable, "-m", "sdp_facade_lab.demo.cli", str(os.getpid()), task],
        stdin=subprocess.DEVNULL,
        process_group=0,
    )
    came: list[int] = []

    def hand_on(number: int, _: Any) -> None:
        came.append(number)
        player.send_signal(number if len(came) <= _PATIENCE else signal.SIGKILL)

    with handlers(hand_on):
        code = player.wait()
    if code >= 0:
        return code
    with handlers(signal.SIG_IGN):
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
def handlers(handler: Any) -> Iterator[None]:
    """Let a function, or `signal.SIG_IGN`, take the signals that end a demo."""
    before = {number: signal.signal(number, handler) for number in _ENDING}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def demo(
    nodes: Annotated[int, typer.Option(min=1, max=9999, help="Ingest nodes.")] = 4,
    rate: Annotated[float, typer.Option(min=1, help="Heaps/s of each node.")] = 31_800.0,
    seconds: Annotated[float, typer.Option(min=5, help="Time for which the simulator sends, in seconds.")] = 30.0,
    columnar: Annotated[
        bool, typer.Option("--columnar", help="Nodes send columnar batches, as they must where there are many.")
    ] = False,
    garbage: Annotated[
        float, typer.Option(min=0, max=1, help="Fraction of malformed records, 0 to 1; 0: no dead letters.")
    ] = 0.0002,
    loss: Annotated[
        list[str] | None,
        typer.Option(metavar="NODE:SHARE", help="A node loses this share of its packets, such as 1:0.02. Repeatable."),
    ] = None,
    kills: Annotated[
        bool, typer.Option(help="Kill (kill -9) a worker, device servers and the controller meanwhile.")
    ] = True,
    controller: Annotated[
        bool,
        typer.Option(help="Start a controller, and observe as TM does. With --no-controller, run your own (--stay)."),
    ] = True,
    logs: Annotated[
        bool | None,
        typer.Option(help="Also ship logs and metrics by rsyslog and collectd (Debian's packages)."),
    ] = None,
    mirror: Annotated[
        bool, typer.Option("--mirror", help="Also simulate a telescope, and mirror its pointing.")
    ] = False,
    orders: Annotated[
        bool,
        typer.Option("--orders", help="Switch SDP as a whole, and let controllers give orders down to workers."),
    ] = False,
    everything: Annotated[
        bool,
        typer.Option("--all", help="Also all other flows: --logs, --mirror, --orders, and blocks that fail."),
    ] = False,
    archive: Annotated[
        bool,
        typer.Option("--archive", help="Also keep all in an archive; in the end verify it, replay it, and report."),
    ] = False,
    secure: Annotated[
        bool,
        typer.Option(
            "--secure",
            help="A broker with TLS, a login and rights for each process; by default in a state folder of its own.",
        ),
    ] = False,
    stay: Annotated[bool, typer.Option("--stay", help="Keep all running until Ctrl-C.")] = False,
    live: Annotated[bool, typer.Option(help="Show the live table where there is a terminal.")] = True,
    state_dir: Annotated[
        Path, typer.Option(help="The folder with the data, the logs and the state.", envvar="SDP_STATE_DIR")
    ] = DEFAULT_STATE_DIR,
    report: Annotated[
        Path | None, typer.Option(help="JSON file for the result. Default: demo-report.json in the state folder.")
    ] = None,
    patience: Annotated[
        float, typer.Option(min=1, help="Factor for every time limit, besides that for slow machines.")
    ] = 1.0,
) -> None:
    """Run the whole system here with a simulated SDP, kill parts of it, and account for every record and command.

    The exit code is 1 if anything does not balance or a limit is passed.

    Example: sdp-facade demo --nodes 2 --rate 5000 --stay
    """
    given = {**locals(), "losses": tuple(loss or ()), "blocks": everything and controller}
    require_arrow()  # its calibration pipeline writes Arrow: said now, not by a process in the middle of the demo
    if secure and state_dir == DEFAULT_STATE_DIR:
        given["state_dir"] = state_dir / "secured"  # a broker is made secured or open, and stays so
    given |= {"logs": everything if logs is None else logs, "mirror": mirror or everything}
    given["orders"] = (orders or everything) and controller
    options = DemoOptions(**{name: value for name, value in given.items() if name not in ("loss", "everything")})
    options.folder.mkdir(parents=True, exist_ok=True)  # said here in one line if it cannot be
    raise typer.Exit(guarded(options, console()))


def play_guarded(guard: str, task: str) -> None:
    """Play; if the guard is killed, clear everything away as after a Ctrl-C."""
    faulthandler.enable()
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # it prints from a group of its own
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(guard):
        sys.exit("the guard of the demo was killed before the demo began")
    from sdp_facade_lab.demo.scenario import play  # with Tango, which the guard does not load

    code = play(msgspec.json.decode(task, type=DemoOptions, dec_hook=_decoded), console(), SystemClock())
    end_process(code)


def _decoded(kind: type[Any], value: Any) -> Any:
    return Path(value) if issubclass(kind, Path) else kind(value)


if __name__ == "__main__":
    play_guarded(*sys.argv[1:])

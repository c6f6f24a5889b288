"""Overload: ten times what is promised, to many clients of which one is frozen; nothing may be lost without a word."""

import os
import re
import signal
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import msgspec
import tango
import typer
from rich.markup import escape
from rich.table import Table

from clients.alert_subscription import AlertSubscription
from facade.clock import Clock, SystemClock
from facade.console import Console
from facade.flows.alerts.follower import Entry
from facade.flows.alerts.simulator.sending import AlertReport
from facade.flows.telemetry.simulator.report import read_report
from facade.runtime.stopping import terminable
from proving.deployment import Deployment
from proving.fuzz.run import WORKERS
from proving.gauges import memory_of_all
from proving.progress import Progress
from proving.roles import RoleContext
from proving.testbed import testbed

HEAPS, ALERTS, METRICS, COMMANDS = 1_272_000, 100, 10, 10
"""Ten times what is promised [1/s]: heaps of all nodes, alerts, rounds of metrics, commands that are refused."""
_DEVICE, _BUS, _MASTER = "mid-sdp/alerts/0", "mid-sdp/bus/0", "mid-sdp/control/0"
_CATCHES_UP_WITHIN = 300.0
_EACH = 0.1


class ClientResult(msgspec.Struct, frozen=True):
    """What one client got."""

    number: int
    sequences: int
    in_order: bool
    newest: int
    lost: list[str]


def follow_in_crowd(context: RoleContext, *, count: int, folder: str) -> list[ClientResult]:
    """Follow the alerts in so many processes, of which the first is frozen until all is sent.

    The file ``newest`` in the folder says then up to which number each must come.
    """
    files, children = Path(folder), []
    for number in range(count):
        if (child := os.fork()) == 0:  # before anything of Tango has begun in this process
            _follow(context, number, files)
            os._exit(0)
        children.append(child)
    _await(context.clock, lambda: len(list(files.glob("*.ready"))) == count, _CATCHES_UP_WITHIN)
    os.kill(children[0], signal.SIGSTOP)
    context.announce()
    _await(context.clock, lambda: (files / "newest").exists(), float("inf"))
    os.kill(children[0], signal.SIGCONT)
    for child in children:
        os.waitpid(child, 0)
    return [msgspec.json.decode(file.read_bytes(), type=ClientResult) for file in files.glob("*.json")]


def _follow(context: RoleContext, number: int, files: Path) -> None:
    sequences: list[int] = []
    lost: list[str] = []

    def on_entry(entry: Entry) -> None:
        sequences.append(entry.sequence)

    subscription = AlertSubscription(f"tango://{context.tango_host}/{_DEVICE}", on_entry, start=0, on_lost=lost.append)
    (files / f"{number}.ready").touch()
    newest = files / "newest"
    _await(context.clock, newest.exists, float("inf"))
    wanted = int(newest.read_text())
    _await(context.clock, lambda: bool(sequences) and sequences[-1] >= wanted, _CATCHES_UP_WITHIN)
    found = sequences[:]
    subscription.close()
    in_order = all(one < two for one, two in pairwise(found))
    result = ClientResult(number, len(found), in_order, found[-1] if found else 0, lost)
    (files / f"{number}.json").write_bytes(msgspec.json.encode(result))


def _await(clock: Clock, condition: Callable[[], bool], seconds: float) -> bool:
    until = clock.monotonic() + seconds
    while not (holds := condition()) and clock.monotonic() < until:
        clock.sleep(_EACH)
    return holds


class Overload:
    """One run."""

    def __init__(self, deployment: Deployment, *, seconds: float, clients: int) -> None:
        self.deployment, self.progress, self.clock = deployment, deployment.progress, deployment.clock
        self._seconds, self._clients = seconds, clients
        self.rows: list[tuple[str, str]] = []
        self.wrong: list[str] = []

    def run(self) -> None:
        """Send for a while, wait until all is dealt with, and account for it."""
        files = self.deployment.folder / "clients"
        files.mkdir()
        crowd = self.deployment.play("follow-in-crowd", count=self._clients, folder=str(files), ends=True)
        self.deployment.await_ready(crowd, _CATCHES_UP_WITHIN)
        said = self._send()
        sent = msgspec.json.decode((self.deployment.folder / "alerts.json").read_bytes(), type=AlertReport)
        heaps = read_report(self.deployment.folder / "heaps.json")
        behind = self.progress.wait_until(
            lambda: self._read(_BUS, "ingestHeapsConsumed") == heaps.sent, _CATCHES_UP_WITHIN, "all heaps are counted"
        )
        self._settle_alerts(sent.sent)
        newest = int(self._read(_DEVICE, "alertSequence"))
        beside = files / ".newest"
        beside.write_text(str(newest))
        beside.replace(files / "newest")
        results = self.deployment.result(crowd, list[ClientResult], 2 * _CATCHES_UP_WITHIN)
        self._judge(heaps, sent.sent, behind, newest, results)
        self.rows += [("said meanwhile", text) for text in said]

    def _send(self) -> list[str]:
        """Send everything for some time, and return what SdpMaster said of it."""
        folder, seconds, launch = self.deployment.folder, f"{self._seconds:g}", self.deployment.launch
        heaps = ("--rate", HEAPS, "--seconds", seconds, "--report", folder / "heaps.json")
        alerts = ("--rate", ALERTS, "--seconds", seconds, "--report", folder / "alerts.json")
        metrics = ("--rate", METRICS, "--count", int(METRICS * self._seconds))
        senders = [
            launch("heaps", "simulate", "ingest", *heaps, ends=True),
            launch("alerts-source", "simulate", "alerts", *alerts, ends=True),
            launch("metrics", "simulate", "quality", *metrics, ends=True),
        ]
        said, refused, slowest, begin = dict[str, str](), 0, 0.0, self.clock.monotonic()
        while any(sender.is_alive for sender in senders):
            called = self.clock.monotonic()
            try:
                self.deployment.proxy("mid-sdp/subarray/01").command_inout("AssignResources", '{"resources": 1}')
            except tango.DevFailed:
                refused += 1
            slowest = max(slowest, self.clock.monotonic() - called)
            for text in self._read(_MASTER, "healthInfo") or ():
                said.setdefault(re.sub(r"\d+", "N", text), text)  # the figures in it change all the time
            self.clock.sleep(1 / COMMANDS)
        took = self.clock.monotonic() - begin
        self.rows.append(("commands refused", f"{refused:,} in {took:.0f} s, the slowest after {slowest * 1e3:.0f} ms"))
        self.deployment.processes.check()
        return list(said.values())

    def _settle_alerts(self, sent: int) -> None:
        def settled() -> bool:
            return int(self._read(_BUS, "alertsConsumed") or 0) >= sent if self._has_account() else True

        self.progress.wait_until(settled, _CATCHES_UP_WITHIN, "all alerts are counted")
        self.progress.wait(5.0)  # our own alerts about it come and go

    def _has_account(self) -> bool:
        return "alertsConsumed" in {one.name for one in self.deployment.icd.classes["SdpBus"].attributes}

    def _read(self, device: str, attribute: str) -> Any:
        try:
            return self.deployment.proxy(device).read_attribute(attribute).value
        except tango.DevFailed:
            return None

    def _judge(self, heaps: Any, alerts: int, behind: float | None, newest: int, results: list[ClientResult]) -> None:
        if behind is None:
            self.wrong.append(f"{heaps.sent:,} heaps sent, {self._read(_BUS, 'ingestHeapsConsumed')} counted")
        if balance := self._read(_BUS, "ingestHeapsBalance"):
            self.wrong.append(f"the account of the heaps does not balance by {balance}")
        if newest < alerts:
            self.wrong.append(f"{alerts:,} alerts sent, the newest number is {newest:,}")
        if len(results) < self._clients:
            self.wrong.append(f"{self._clients} clients, {len(results)} delivered anything")
        for one in results:
            if one.newest < newest or not one.in_order or one.lost:
                self.wrong.append(
                    f"client {one.number}: {one.sequences:,} alerts up to {one.newest:,} of {newest:,}: {one.lost}"
                )
        self.rows += [
            ("heaps sent", f"{heaps.sent:,} in {heaps.elapsed:.0f} s: {heaps.sent / heaps.elapsed:,.0f}/s"),
            ("... all counted after", "never" if behind is None else f"{behind:.1f} s more"),
            ("... late", f"{self._read(_BUS, 'ingestHeapsLate')}"),
            ("alerts", f"{alerts:,} sent, {newest:,} numbered, each given to {len(results)} clients, one frozen"),
            (
                "memory",
                ", ".join(f"{name} {size:.0f}" for name, size in memory_of_all(self.deployment).items()) + " MB",
            ),
        ]


def overload(
    seconds: Annotated[float, typer.Option(min=1, help="For how long.")] = 60.0,
    clients: Annotated[int, typer.Option(min=1, help="Processes that follow the alerts; the first is frozen.")] = 200,
    folder: Annotated[Path, typer.Option(help="Where a broker, a Tango database and logs may live meanwhile.")] = Path(
        ".run"
    ),
) -> None:
    """Send ten times what is promised, to many clients of which one is frozen, and account for all of it.

    What this machine cannot send, it sends as fast as it can; the table says how fast that was. The exit code is 1
    when a record is in no count, or a client lacks an alert.

    Example: sdp-facade overload --seconds 10 --clients 20
    """
    progress = Progress(Console(highlight=False, soft_wrap=True), SystemClock())
    with terminable(), testbed(folder, progress) as bed, bed.system("overload", nodes=4, subarrays=2) as deployment:
        for name, words in WORKERS.items():
            deployment.launch(name, *words)
        run = Overload(deployment, seconds=seconds, clients=clients)
        run.run()
    table = Table("what", "figure", title=f"{seconds:g} s of overload")
    for what, figure in run.rows:
        table.add_row(what, escape(figure))
    progress.console.print(table)
    for text in run.wrong:
        progress.console.print(f"[red]wrong[/red]  {escape(text)}")
    if run.wrong:
        raise typer.Exit(1)
    progress.console.print("nothing was lost without a word")

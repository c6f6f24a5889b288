"""Overload: ten times the promised load, to many clients. One client is frozen.

A machine that cannot send the promised rate sends as fast as it can. Expected: each record in one count, and each alert
at each client. Observed: SdpBus, and the clients.
"""

import os
import signal
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import tango

from facade.flows.alerts.follower import FollowedAlert
from facade.flows.alerts.simulator.stream import AlertReport
from facade.flows.telemetry.simulator.ingest import read_report
from facade.kernel.clock import wait_until
from facade.kernel.errors import InfraError
from sdp_facade_clients.alert_subscription import AlertSubscription
from sdp_facade_lab.balance import Balance
from sdp_facade_lab.fault_runs.frame import FURTHER_WORKERS, FaultRun, Size
from sdp_facade_lab.roles import RoleContext

HEAPS, ALERTS, METRICS, COMMANDS = 1_272_000, 100, 10, 10
"""Ten times the promised load [1/s]: heaps of all nodes, alerts, rounds of metrics, commands that are refused."""
_CLIENTS, _QUICK_CLIENTS, _FOLLOWING = 200, 20, 10
"""Processes that subscribe to the alerts, and how many of them check each alert; the first one is frozen."""
_DEVICE, _BUS = "mid-sdp/alerts/0", "mid-sdp/bus/0"
_CATCHES_UP_WITHIN = 300.0
_EACH = 0.1


class ClientResult(msgspec.Struct, frozen=True):
    """What one client got; of one that follows, all of it, of another one the newest alert."""

    number: int
    in_order: bool
    newest: int
    lost: list[str]
    alerts: dict[str, int] = {}
    """By source, of a client that follows."""


def crowd(context: RoleContext, *, count: int, following: int, folder: str) -> list[ClientResult]:
    """Play clients of the alerts, each in a process. The first one is frozen until all is sent.

    The first ones follow and check each alert. To make Python's objects of each event in all of them would take the
    processors that the system is to have; on a site they are other machines'. So the others let Tango's library receive
    all events and keep the newest: they cost the device server as much. The file ``newest`` in the folder says in the
    end up to which number each must come.
    """
    files, children = Path(folder), []
    for number in range(count):
        if (child := os.fork()) == 0:  # before anything of Tango has begun in this process
            (_follow if number < following else _watch)(context, number, files)
            os._exit(0)
        children.append(child)
    wait_until(context.clock, lambda: len(list(files.glob("*.ready"))) == count, _CATCHES_UP_WITHIN, _EACH)
    os.kill(children[0], signal.SIGSTOP)
    context.announce()
    wait_until(context.clock, lambda: (files / "newest").exists(), float("inf"), _EACH)
    os.kill(children[0], signal.SIGCONT)
    for child in children:
        os.waitpid(child, 0)
    return [msgspec.json.decode(file.read_bytes(), type=ClientResult) for file in files.glob("*.json")]


def _follow(context: RoleContext, number: int, files: Path) -> None:
    sequences: list[int] = []
    lost: list[str] = []
    alerts = Counter[str]()

    def on_entry(entry: FollowedAlert) -> None:
        sequences.append(entry.sequence)
        if entry.alert is not None:
            alerts[entry.alert["source"]] += 1

    subscription = AlertSubscription(f"tango://{context.tango_host}/{_DEVICE}", on_entry, start=0, on_lost=lost.append)
    wanted = _wanted(context, number, files)
    wait_until(context.clock, lambda: bool(sequences) and sequences[-1] >= wanted, _CATCHES_UP_WITHIN, _EACH)
    subscription.close()
    in_order = all(one < two for one, two in pairwise(sequences))
    _deliver(files, ClientResult(number, in_order, sequences[-1] if sequences else 0, lost, dict(alerts)))


def _watch(context: RoleContext, number: int, files: Path) -> None:
    seen: list[int] = []
    proxy = tango.DeviceProxy(f"tango://{context.tango_host}/{_DEVICE}")
    id = proxy.subscribe_event("lastAlert", tango.EventType.CHANGE_EVENT, 1)  # a queue that keeps the newest one
    wanted = _wanted(context, number, files)

    def has_come() -> bool:
        texts = [event.attr_value.value for event in proxy.get_events(id) if not event.err]
        seen.extend(msgspec.json.decode(text, type=FollowedAlert).sequence for text in texts if text)
        return bool(seen) and seen[-1] >= wanted

    wait_until(context.clock, has_come, _CATCHES_UP_WITHIN, _EACH)
    _deliver(files, ClientResult(number, True, seen[-1] if seen else 0, []))


def _wanted(context: RoleContext, number: int, files: Path) -> int:
    """Say that a client is there, wait until all is sent, and return the number up to which it must come."""
    (files / f"{number}.ready").touch()
    newest = files / "newest"
    wait_until(context.clock, newest.exists, float("inf"), _EACH)
    return int(newest.read_text())


def _deliver(files: Path, result: ClientResult) -> None:
    (files / f"{result.number}.json").write_bytes(msgspec.json.encode(result))


class Overload(FaultRun):
    """One run; no process is killed, and none may end by itself."""

    unit, all_is_well = "s of overload", "nothing was lost without a word"
    full, short = Size(60, 0), Size(10, 0)
    settings: ClassVar = {"nodes": 4, "subarrays": 2}
    is_whole = True

    def prepare(self) -> None:
        self._clients, self._following = (_QUICK_CLIENTS if self.quick else _CLIENTS), _FOLLOWING
        self.rows: list[tuple[str, int | str]] = []
        self.wrong: list[str] = []

    def run(self) -> Balance:
        for name, words in FURTHER_WORKERS.items():
            self.deployment.launch(name, *words)
        files = self.deployment.folder / "clients"
        files.mkdir()
        count, following = self._clients, self._following
        clients = self.deployment.play(crowd, ends=True, count=count, following=following, folder=str(files))
        self.deployment.await_ready(clients, _CATCHES_UP_WITHIN)
        self._send()
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
        results = self.deployment.result(clients, list[ClientResult], 2 * _CATCHES_UP_WITHIN)
        self._judge(heaps, sent, behind, newest, results)
        return Balance(self.rows, self.wrong)

    def _send(self) -> None:
        """Send everything for some time, and give commands that are refused meanwhile."""
        folder, seconds, launch = self.deployment.folder, str(self.count), self.deployment.launch
        heaps = ("--rate", HEAPS, "--seconds", seconds, "--report", folder / "heaps.json")
        alerts = ("--rate", ALERTS, "--seconds", seconds, "--report", folder / "alerts.json")
        metrics = ("--rate", METRICS, "--count", METRICS * self.count)
        senders = [
            launch("heaps", "simulate", "ingest", *heaps, ends=True),
            launch("alerts-source", "simulate", "alerts", *alerts, ends=True),
            launch("metrics", "simulate", "quality", *metrics, ends=True),
        ]
        slowest, refused, begin = 0.0, 0, self.clock.monotonic()
        while any(sender.is_alive for sender in senders):
            slowest = max(slowest, self._refused())
            refused += 1
            self.clock.sleep(max(begin + refused / COMMANDS - self.clock.monotonic(), 0.0))
        took = self.clock.monotonic() - begin
        figures = f"{refused:,}: {refused / took:.1f}/s of {COMMANDS}/s, the slowest after {slowest * 1e3:.0f} ms"
        self.rows.append(("commands refused", figures))
        self.deployment.processes.check()

    def _refused(self) -> float:
        called = self.clock.monotonic()
        try:
            self.deployment.proxy("mid-sdp/subarray/01").command_inout("AssignResources", '{"resources": 1}')
        except tango.DevFailed:
            return self.clock.monotonic() - called
        raise InfraError("AssignResources without an interface: expected to be refused, got an id")

    def _settle_alerts(self, sent: int) -> None:
        self.progress.wait_until(
            lambda: int(self._read(_DEVICE, "alertSequence") or 0) >= sent,
            _CATCHES_UP_WITHIN,
            "all alerts are numbered",
        )
        self.progress.wait(5.0)  # our own alerts about it come and go

    def _read(self, device: str, attribute: str) -> Any:
        return self.deployment.values(device, attribute).get(attribute)

    def _judge(
        self, heaps: Any, alerts: AlertReport, behind: float | None, newest: int, results: list[ClientResult]
    ) -> None:
        if behind is None:
            self.wrong.append(f"{heaps.sent:,} heaps sent, {self._read(_BUS, 'ingestHeapsConsumed')} counted")
        names = [one.name for one in self.deployment.icd.classes["SdpBus"].attributes if one.name.endswith("Balance")]
        self.wrong += [f"{name} is {off}" for name in names if (off := self._read(_BUS, name))]
        if newest < alerts.sent:
            self.wrong.append(f"{alerts.sent:,} alerts sent, the newest number is {newest:,}")
        if len(results) < self._clients:
            self.wrong.append(f"{self._clients} clients, {len(results)} delivered anything")
        sent = {name: account.count for name, account in alerts.sources.items()}
        for one in results:
            got = {name: one.alerts.get(name, 0) for name in sent} if one.number < self._following else sent
            if one.newest < newest or not one.in_order or one.lost or got != sent:
                self.wrong.append(
                    f"client {one.number}: {sum(got.values()):,} of {alerts.sent:,} alerts,"
                    f" up to number {one.newest:,} of {newest:,}{'' if one.in_order else ', not in order'}: {one.lost}"
                )
        rate = heaps.sent / heaps.elapsed
        self.rows += [
            ("heaps sent", f"{heaps.sent:,} in {heaps.elapsed:.0f} s: {rate:,.0f}/s of {HEAPS:,}/s"),
            ("... all counted after", "never" if behind is None else f"{behind:.1f} s more"),
            ("... late", f"{self._read(_BUS, 'ingestHeapsLate')}"),
            (
                "alerts",
                f"{alerts.sent:,} sent, {newest:,} numbered; {self._following} clients follow, of which one was frozen"
                f" meanwhile, and {len(results) - self._following} others keep the newest",
            ),
        ]

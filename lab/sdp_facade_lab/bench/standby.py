"""Gaps that clients see when a standby takes the place of a device server, in order and after a kill."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

import msgspec
import tango

from facade.flows.alerts.follower import FollowedAlert
from facade.flows.alerts.simulator.stream import read_alert_report
from facade.kernel.clock import Clock
from facade.kernel.names import SERVER
from sdp_facade_clients.alert_subscription import AlertSubscription
from sdp_facade_lab.bench.report import BarVerdict, BenchOutcome, at_most
from sdp_facade_lab.deployment import Deployment
from sdp_facade_lab.roles import RoleContext
from sdp_facade_lab.testbed import Testbed

KILLED_BAR, PLANNED_BAR = 3.0, 1.0
"""Longest gaps: after a kill, for a client as SKA's, and when the server is stopped, for any client [s]."""
_EVERY = 0.02
"""Time between two questions of an attentive client [s]."""
_LIVELINESS = 1.0
"""Time between two questions of SKA's clients [s]."""
_LOOK = 0.1
_SETTLE = 6.0
"""After a change: a gap is over, and a new standby has come up."""
_ALERTS_PER_S = 20
_BY_STATE = "not allowed"
"""Text of a refusal by the state or a command under way: only a server that may command comes to it."""
_ASKED = {"subarray": ("SdpSubarray", "ObsReset"), "control": ("SdpMaster", "Off"), "alerts": ("SdpAlerts", "")}
"""Instance to the class that is asked, and a command that its state refuses; alerts take no commands."""


class SeenService(msgspec.Struct, frozen=True, kw_only=True):
    """When a client was served [Unix s]."""

    values: list[float] = []
    """Answers with a value."""
    commands: list[float] = []
    """Answers of a server that may command."""
    events: list[float] = []
    """First events of each subscription of a client that looks each second, as SKA's do."""
    alerts: list[tuple[float, int]] = []
    """Alerts with their numbers."""
    lost: list[str] = []


def be_served(context: RoleContext, *, device: str, refused: str, follows: bool) -> SeenService:
    clock, url, seen = context.clock, f"tango://{context.tango_host}/{device}", SeenService()
    subscription = None
    if follows:

        def on_alert(entry: FollowedAlert) -> None:
            seen.alerts.append((clock.now(), entry.sequence))

        subscription = AlertSubscription(url, on_alert, start=0, on_lost=seen.lost.append)
    bodies: list[Callable[[], None]] = [_Attentive(url, clock, lambda proxy: _read(proxy, seen, clock)).step]
    if refused:
        bodies.append(_Attentive(url, clock, lambda proxy: _command(proxy, refused, seen, clock)).step)
    bodies.append(_Lively(url, clock, seen).step)

    def run(step: Callable[[], None]) -> None:
        with tango.EnsureOmniThread():
            while not context.called_off:
                step()

    threads = [threading.Thread(target=run, args=(body,), daemon=True) for body in bodies]
    for thread in threads:
        thread.start()
    while not (seen.values and seen.events):
        clock.sleep(_LOOK)
    context.announce()
    for thread in threads:
        thread.join()
    if subscription is not None:
        subscription.close()
    return seen


class _Attentive:
    """Puts one question all the time, with a new proxy after a failure: an old one would wait for a second."""

    def __init__(self, url: str, clock: Clock, ask: Callable[[Any], None]) -> None:
        self._url, self._clock, self._ask = url, clock, ask
        self._proxy: Any = None

    def step(self) -> None:
        try:
            self._proxy = self._proxy or tango.DeviceProxy(self._url)
            self._ask(self._proxy)
        except tango.DevFailed:
            self._proxy = None
        self._clock.sleep(_EVERY)


def _read(proxy: Any, seen: SeenService, clock: Clock) -> None:
    if proxy.state() != tango.DevState.UNKNOWN:
        seen.values.append(clock.now())


def _command(proxy: Any, name: str, seen: SeenService, clock: Clock) -> None:
    try:
        proxy.command_inout(name)
    except tango.DevFailed as failed:
        if not failed.args[0].origin.startswith("Sdp"):
            raise  # it is Tango's: the server is away
        if _BY_STATE not in failed.args[0].desc:
            return  # by a server that may not command
    seen.commands.append(clock.now())


class _Lively:
    """Subscribes as SKA's Telescope Manager: a call each second tells whether the server is there."""

    def __init__(self, url: str, clock: Clock, seen: SeenService) -> None:
        self._proxy, self._clock, self._seen = tango.DeviceProxy(url), clock, seen
        self._subscription: int | None = None

    def step(self) -> None:
        try:
            self._proxy.state()
            if self._subscription is None:
                self._subscribe()
        except tango.DevFailed:
            if self._subscription is not None:
                with suppress(tango.DevFailed):
                    self._proxy.unsubscribe_event(self._subscription)
                self._subscription = None
        self._clock.sleep(_LIVELINESS)

    def _subscribe(self) -> None:
        is_first = True

        def on_event(event: Any) -> None:
            nonlocal is_first
            if is_first and not event.err and event.attr_value.value != tango.DevState.UNKNOWN:
                is_first = False
                self._seen.events.append(self._clock.now())

        self._subscription = self._proxy.subscribe_event(
            "State", tango.EventType.CHANGE_EVENT, on_event, tango.EventSubMode.Stateless
        )


def standby(testbed: Testbed, *, quick: bool) -> BenchOutcome:
    times = 2 if quick else 5
    verdicts, figures = list[BarVerdict](), dict[str, Any]()
    with testbed.deployment("standby", partitions=None, nodes=1) as made:
        made.prune()
        made.register()
        for instance, (of_class, refused) in _ASKED.items():
            run = _Run(made, instance)
            (device, *_) = made.devices(of_class)
            client = made.play(
                be_served, name=f"client-{instance}", device=device, refused=refused, follows=instance == "alerts"
            )
            made.await_ready(client)
            if instance == "alerts":
                made.launch("alert-source", "simulate", "alerts", "--rate", _ALERTS_PER_S, "--report", run.report)
            for _ in range(times):
                run.change(is_kill=False)
                run.change(is_kill=True)
            sent = run.sent() if instance == "alerts" else 0
            client.call_off()
            seen = made.result(client, SeenService)
            run.end()
            figures[instance] = seen, run.changes
            verdicts += _judge(instance, seen, run.changes)
            if instance == "alerts":
                numbers = [number for _, number in seen.alerts]
                right = numbers == list(range(1, len(numbers) + 1)) and len(numbers) >= sent and not seen.lost
                what = f"alerts: numbers from 1 on at a client, each once; {sent} were sent"
                verdicts.append(BarVerdict(what, f"{len(numbers)}", bar=f">= {sent}", reached=right))
    return BenchOutcome(
        what="from the stop or kill of a device server to what its standby serves under the same names",
        verdicts=tuple(verdicts),
        figures=figures,
    )


class _Run:
    """A server and its standby; each change makes one of the other."""

    def __init__(self, made: Deployment, instance: str) -> None:
        self._made, self._instance, self._count = made, instance, 0
        self.report = made.folder / "alert-source.json"
        self.changes: list[tuple[bool, float]] = []
        """Whether it was a kill, and when it was made [Unix s]."""
        self._serving = self._stand_by()
        made.progress.demand(lambda: made.answers(instance), 60.0, f"the device server {instance}")
        self._waiting = self._stand_by()

    def change(self, *, is_kill: bool) -> None:
        self.changes.append((is_kill, self._made.clock.now()))
        (self._made.processes.kill if is_kill else self._made.processes.stop)(self._serving)
        self._serving = self._waiting
        self._made.progress.wait(_SETTLE, f"{self._instance} {'killed' if is_kill else 'stopped'}")
        self._waiting = self._stand_by()
        self._made.processes.check()

    def sent(self) -> int:
        """End the source of the alerts, and return how many it has sent once its last one has come."""
        self._made.processes.stop("alert-source")
        self._made.progress.wait(_SETTLE, "the last alerts")
        return read_alert_report(self.report).sent

    def end(self) -> None:
        for name in (self._waiting, self._serving):
            self._made.processes.stop(name)

    def _stand_by(self) -> str:
        self._count += 1
        name = f"{self._instance}-{self._count}"
        process = self._made.start(name, [SERVER, self._instance, "--standby"], SDP_LOG_LEVEL="INFO")
        self._made.progress.demand(lambda: "standing by" in process.tail(), 60.0, f"{name} stands by")
        return name


def _judge(instance: str, seen: SeenService, changes: Sequence[tuple[bool, float]]) -> Iterator[BarVerdict]:
    for is_kill, how in ((False, "stopped"), (True, "killed")):
        at = [when for was_kill, when in changes if was_kill == is_kill]
        bar = KILLED_BAR if is_kill else PLANNED_BAR
        yield at_most(f"{instance} {how}: longest gap of values", _longest(seen.values, at), bar, "s")
        if _ASKED[instance][1]:
            yield at_most(f"{instance} {how}: longest gap of commands", _longest(seen.commands, at), bar, "s")
        if instance == "alerts":
            alerts = _longest([time for time, _ in seen.alerts], at)
            yield at_most(f"{instance} {how}: longest silence between two alerts", alerts, KILLED_BAR, "s")
        events = max(min((one for one in seen.events if one > when), default=float("inf")) - when for when in at)
        yield at_most(f"{instance} {how}: until a client as SKA's has events again", events, KILLED_BAR, "s")


def _longest(times: Sequence[float], changes: Sequence[float]) -> float | None:
    """Return the longest gap in which one of the changes fell, or which began soon after one."""
    found = (
        then - before
        for before, then in pairwise(times)
        if any(then > one and before < one + _SETTLE for one in changes)
    )
    return max(found, default=None)

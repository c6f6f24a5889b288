"""A cluster through accidents: heaps, commands, alerts and tables at once, while its three brokers fail in many ways.

Sent, expected and observed: as in the run of each flow. Each flow has a deployment of its own on the same brokers,
since its account knows everything that is on its topics.

Theory of operation
-------------------
The accidents (`accidents.py`) happen one after the other in a thread, while the flows go on. The next one waits until
all replicas are in sync, because two lost disks may lose records, and until a record of each flow has arrived since
then, so that each silence has one accident as its cause.

Beside the flows, each accident after which no two brokers are left is the time for acts of an operator, and after each
accident one role tries an act which its rights forbid. A silence of a flow is put down to the first accident that began
in it, or else to the last one before it.
"""

import json
import math
import os
import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import msgspec
import tango
from confluent_kafka import KafkaException, Producer
from rich.table import Table

from facade.admin import rights
from facade.admin.quotas import name_of
from facade.flows.alerts.messages import ALERTS, Alert, alert_record
from facade.infra import local
from facade.infra.local import BROKERS
from facade.infra.processes import Process
from facade.kernel.bus.kafka.producer import KafkaStreamWriter
from facade.kernel.bus.port import BusHealth
from facade.kernel.clock import wait_until
from facade.kernel.console import table
from facade.kernel.errors import InfraError
from facade.kernel.icd.topic_model import slot_name
from sdp_facade_lab.balance import Balance, Silence
from sdp_facade_lab.command_account import Answer, CallLine
from sdp_facade_lab.fault_runs import accidents
from sdp_facade_lab.fault_runs.accidents import WHOLE_WITHIN, Brokers, ClusterFault, schedule, take_own_network
from sdp_facade_lab.fault_runs.alerts import AlertFaultRun
from sdp_facade_lab.fault_runs.callers import answer_of, read_calls
from sdp_facade_lab.fault_runs.commands import CommandFaultRun
from sdp_facade_lab.fault_runs.frame import READY_WITHIN, FaultRun, Size
from sdp_facade_lab.fault_runs.heaps import HeapFaultRun
from sdp_facade_lab.fault_runs.tables import TableFaultRun
from sdp_facade_lab.testbed import Testbed

_STANDSTILL = 600.0
"""A flow that stands still for longer does not go on [s]: all replicas may need some minutes on a busy machine."""
_BAR = 0.5
"""A refusal is to come within this [s]."""
_UNCONFIRMED: tuple[Answer, ...] = ("not sent", "unknown")
_DONE = "done"
_LARGE_ENOUGH = 10_000_000
_LOOK_EACH = 1.0
"""Time between two counts of what has arrived [s]."""
_ACT_EACH = 0.2
"""Pause between two acts of the operator [s]."""
_ALARMS = 1_000
"""Alarms on which the operator may act."""
_COMPILER = "JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1"
"""The brokers do without the second compiler of Java: a secured one needs 2 to 3 s of processor time until it answers,
instead of 5 s, and half as much for new connections. Records, of which there are few, cost 1.5 times as much."""


# All flows are slow enough for a run of hours on a small machine, most of whose work is the accidents.


class _Heaps(HeapFaultRun):
    rate = 500


class _Commands(CommandFaultRun):
    pause, standstill = 6.0, _STANDSTILL

    def parts(self) -> Mapping[str, Callable[[], Process]]:
        return {**super().parts(), "alerts": lambda: self.deployment.server("alerts")}


class _Alerts(AlertFaultRun):
    """A burst each second."""

    standstill = _STANDSTILL

    def prepare(self) -> None:
        super().prepare()
        self._burst, self._interval = 100, 1.0


class _Tables(TableFaultRun):
    def prepare(self) -> None:
        super().prepare()
        self._size, self._each = 300_000, 2.0


class _Accident(NamedTuple):
    """One that has happened."""

    fault: ClusterFault
    began: float
    """[Unix s]."""
    recovery: float
    """From its end until all replicas were in sync [s]."""


class ClusterRun(FaultRun):
    """One run of the cluster."""

    unit, all_is_well = "accidents", "no flow has lost or doubled anything"
    full, short = Size(20, 0), Size(4, 0)
    settings = HeapFaultRun.settings
    brokers = secured = len(BROKERS)
    has_history = True
    flows: ClassVar[Mapping[str, type[FaultRun]]] = {
        accidents.HEAPS: _Heaps,
        accidents.COMMANDS: _Commands,
        accidents.ALERTS: _Alerts,
        accidents.TABLES: _Tables,
    }
    can_cut: ClassVar[bool] = False
    """Whether the run has a network of its own."""

    @classmethod
    def before(cls) -> None:
        cls.can_cut = take_own_network()
        os.environ.setdefault(*_COMPILER)

    def prepare(self) -> None:
        kinds = accidents.kinds_here(can_cut=self.can_cut, secured=self.deployment.endpoints.security is not None)
        if accidents.find_faketime() is None:
            self.progress.step("clocks stay right, and certificates valid: that needs libfaketime of Debian")
        if not self.can_cut:
            self.progress.step("the network between brokers is not cut: that needs root, and `ip` of iproute2")
        self._schedule = schedule(self.seed, self.count, kinds)
        self._chance = random.Random(self.seed)  # noqa: S311 - as the schedule
        self._happens: Future[None] | None = None
        self._accidents: list[_Accident] = []
        self._last_at = math.inf
        """No accident begins after that [monotonic s]."""
        self._now = ""
        """The accident that happens."""
        self._arrived: dict[str, int] = {}
        """Records of each flow that had arrived when the last accident was over."""
        self._over_at = math.inf
        """When that was [monotonic s]."""
        self._look_at = 0.0
        """When it is looked at again whether others have arrived [monotonic s]."""
        self._goes_on: dict[str, FaultRun] = {}
        self._stopped = False
        self._early = list[str]()
        """Flows that ended by themselves: the accidents after their end did not concern them."""
        self._alone: list[tuple[float, float]] = []
        """From when to when no two brokers could confirm a record [Unix s]."""
        self._alarms: list[tuple[str, int]] = []
        """Source and occurrence of the alarms without an action."""
        self._acts: list[CallLine] = []
        """Acts of the operator while no two brokers could confirm one."""
        self._forbidden: list[tuple[str, str, str]] = []
        """Role, act and answer."""

    def run(self) -> Balance:
        with ExitStack() as stack:
            self._thread = stack.enter_context(ThreadPoolExecutor(1))
            for name, made in self.flows.items():
                deployment = self.deployment
                if name != accidents.HEAPS:
                    endpoints = (
                        self._endpoints_of_operators(stack) if name == accidents.COMMANDS else deployment.endpoints
                    )
                    bed = Testbed(endpoints, deployment.folder, self.progress)
                    deployment = stack.enter_context(bed.deployment(f"prove-{name}", **made.settings))
                    deployment.register()
                size = Size(min(made.most, _LARGE_ENOUGH), 0)
                self._goes_on[name] = made(deployment, size, self.seed, quick=True)
                self._goes_on[name].is_judged = self.is_judged
            self._all = dict(self._goes_on)
            prefixes = {name: flow.deployment.settings.prefix for name, flow in self._all.items()}
            admin, state_dir = self.deployment.connection.admin(), self.deployment.endpoints.state_dir
            self._brokers = Brokers(state_dir, admin, prefixes, self._chance, self.clock, self.progress.step)
            return super().run()

    def _endpoints_of_operators(self, stack: ExitStack) -> local.Endpoints:
        """Start another Tango database: two of the deployments have a device of the alarms, of the same name."""
        runtime = local.Runtime(self.deployment.folder / "operators", clock=self.clock)
        with runtime.lock():
            runtime.start({local.ServiceName.TANGO_DB: 0})
        stack.callback(local.down, runtime.state_dir)
        return replace(self.deployment.endpoints, tango_host=runtime.endpoints().tango_host)

    def parts(self) -> Mapping[str, Callable[[], Process]]:
        return {}

    def revive(self) -> None:
        for flow in self._all.values():
            flow.revive()

    def begin(self) -> None:
        for flow in self._all.values():
            flow.begin()
            flow.moved = self.clock.monotonic()
        self._raise_alarms()
        self._last_at = self.clock.monotonic() + self.within

    def step(self) -> bool:
        if self.clock.monotonic() >= self._last_at:
            self._schedule.clear()
        if not self._schedule and not self._is_happening() and not self._stopped:
            self._stopped = True
            self.progress.step("  the last accident is over; the flows end")
            for flow in self._goes_on.values():
                flow.stop_sending()
        ended = [name for name, flow in self._goes_on.items() if not flow.step()]
        for name in ended:
            del self._goes_on[name]
        if not self._stopped:
            self._early += ended
        return bool(self._goes_on)

    def due(self) -> str:
        if self._is_happening() or not self._schedule or not self._all_go_on():
            return ""
        return str(self._schedule[0])

    def _all_go_on(self) -> bool:
        """Return whether a record of each flow has arrived since the last accident was over."""
        if self.clock.monotonic() < self._look_at:
            return False
        self._look_at = self.clock.monotonic() + _LOOK_EACH
        silent = [name for name, one in self._goes_on.items() if one.count_arrived() <= self._arrived.get(name, 0)]
        if silent and self.clock.monotonic() > self._over_at + _STANDSTILL:
            raise InfraError(f"{self._now}: nothing of {', '.join(silent)} has arrived for {_STANDSTILL:g} s after it")
        return not silent

    def inject(self, fault: str) -> None:
        accident = self._schedule.pop(0)
        self._now = f"{fault}, {accident.seconds:.1f} s"
        self.progress.step(f"  {self._now}")
        self._happens = self._thread.submit(self._happen, accident)

    def faults_in_words(self) -> str:
        return f"{len(self._accidents)} of {self.count} accidents, the newest: {self._now or 'none'}"

    def in_words(self) -> str:
        return "; ".join(flow.in_words() for flow in self._all.values())

    def account(self) -> Balance:
        self.injected.clear()  # a table of its own has them
        made = Balance(wrong=[f"{name}: ended before the last accident" for name in self._early])
        for name, flow in self._all.items():
            self.progress.step(f"  account of the {name}")
            try:
                found = flow.account()
            except InfraError as error:  # the others are accounted for nevertheless
                made.wrong.append(f"{name}: {error}")
                continue
            made.rows += [(f"{name}: {what}", number) for what, number in found.rows]
            made.wrong += [f"{name}: {text}" for text in found.wrong]
            made.tallies |= found.tallies
        recovery = max((one.recovery for one in self._accidents), default=0.0)
        made.rows.append(("longest recovery after an accident: all replicas in sync", f"{recovery:.1f} s"))
        for what, alone in (("commands", self._calls_alone()), ("acts on alarms", self._acts)):
            made.rows += _refusals(what, alone)
            made.wrong += [
                f"{one.id}: was given, and no two brokers could confirm it"
                for one in alone
                if not one.text and not one.again and self._has_ended_alone(one)
            ]
        made.wrong += [
            f"{role} may not {act}: {answer}"
            for role, act, answer in self._forbidden
            if "AUTHORIZATION_FAILED" not in answer
        ]
        made.tables += [self._silences(made), self._by_kind(made)]
        if self._forbidden:
            made.tables.append(table(("role", "forbidden act", "answer"), sorted(self._forbidden)))
        return made

    def _silences(self, made: Balance) -> Table:
        rows = []
        for flow, tally in made.tallies.items():
            gap = max(tally.gaps, key=lambda one: one.seconds, default=Silence(0.0, 0.0))
            number, spans = self._cause(gap)
            cause = "no accident before it"
            if number >= 0:
                fault, _, recovery = self._accidents[number]
                cause = f"no. {number + 1}: {fault}, {fault.seconds:.1f} s; in sync {recovery:.1f} s later"
            rows.append((flow, f"{gap.seconds:.1f} s", cause, str(spans)))
        return table(("flow", "longest silence", "accident", "further ones in it"), rows)

    def _by_kind(self, made: Balance) -> Table:
        kinds = sorted({str(one.fault) for one in self._accidents})
        longest = {kind: dict.fromkeys(made.tallies, 0.0) for kind in kinds}
        for flow, tally in made.tallies.items():
            for gap in tally.gaps:
                if (number := self._cause(gap)[0]) >= 0:
                    found = longest[str(self._accidents[number].fault)]
                    found[flow] = max(found[flow], gap.seconds)
        rows = []
        for kind in kinds:
            recoveries = [one.recovery for one in self._accidents if str(one.fault) == kind]
            silences = (f"{seconds:.1f}" for seconds in longest[kind].values())
            rows.append((kind, str(len(recoveries)), f"{max(recoveries):.1f}", *silences))
        flows = (f"{flow} silent [s]" for flow in made.tallies)
        return table(("accident", "number", "in sync after [s]", *flows), rows)

    def _cause(self, gap: Silence) -> tuple[int, int]:
        """Return which accident a silence is put down to, and how many more began in it; -1: none was before it."""
        within = [n for n, one in enumerate(self._accidents) if gap.began <= one.began <= gap.began + gap.seconds]
        before = [n for n, one in enumerate(self._accidents) if one.began < gap.began]
        return (within or before[-1:] or [-1])[0], max(0, len(within) - 1)

    def _is_happening(self) -> bool:
        if self._happens is None:
            return False
        if self._happens.done():
            self._happens.result()
            self._happens = None
            self._arrived = {name: flow.count_arrived() for name, flow in self._goes_on.items()}
            self._over_at = self.clock.monotonic()
            return False
        return True

    def _happen(self, accident: ClusterFault) -> None:
        """Let an accident happen, and wait until all replicas are in sync again."""
        began = self.clock.now()
        with self._brokers.suffer(accident):
            # Before and after this, some brokers are away and some are not: either outcome of a command is right.
            begin = self.clock.now()
            if accident.leaves_no_two:
                self._act(begin + accident.seconds - _BAR)
            self.clock.sleep(max(0.0, begin + accident.seconds - self.clock.now()))
            end = self.clock.now()
        if accident.leaves_no_two:
            self._alone.append((begin, end))
        if not wait_until(self.clock, self._brokers.is_whole, WHOLE_WITHIN, 0.2):
            raise InfraError(f"{accident}: not all replicas are in sync {WHOLE_WITHIN:g} s after it")
        self._accidents.append(_Accident(accident, began, self.clock.now() - end))
        self._try_what_is_forbidden()
        self.clock.sleep(accident.calm)

    def _raise_alarms(self) -> None:
        """Raise alarms that no flow knows of."""
        deployment = self._all[accidents.COMMANDS].deployment
        device = deployment.devices("SdpAlerts")[0]
        writer = KafkaStreamWriter(deployment.connection, health=BusHealth(), client="sources")
        now = self.clock.now_us()
        about = {"condition": "storageLow", "severity": "WARNING", "state": "ACTIVE", "raised_at": now, "sequence": 1}
        records = [
            alert_record(msgspec.convert({**about, "source": f"store/{number}", "text": "full"}, Alert))
            for number in range(_ALARMS)
        ]
        writer.send_many(ALERTS, [record.key for record in records], [record.value for record in records])
        writer.flush(READY_WITHIN)

        def are_shown() -> bool:
            with suppress(tango.DevFailed):
                shown = deployment.alarms(device)
                self._alarms = [(one["source"], one["occurrence"]) for one in shown if one["condition"] == "storageLow"]
            return len(self._alarms) == _ALARMS

        self.demand(are_shown, READY_WITHIN, "the alarms to be acted on are shown")

    def _act(self, until: float) -> None:
        """Acknowledge and shelve alarms while no two brokers can confirm it."""
        deployment = self._all[accidents.COMMANDS].deployment
        device = deployment.devices("SdpAlerts")[0]
        with tango.EnsureOmniThread():
            proxy = deployment.proxy(device)
            while self._alarms and self.clock.now() < until:
                source, occurrence = self._alarms.pop()
                about = {"condition": "storageLow", "source": source, "operator": "operator", "comment": "accident"}
                for command, more in (("Acknowledge", {"occurrence": occurrence}), ("Shelve", {"duration": 60.0})):
                    if self.clock.now() < until:
                        self._acts.append(self._call(proxy, device, command, json.dumps({**about, **more})))
                        self.clock.sleep(_ACT_EACH)

    def _call(self, proxy: Any, device: str, command: str, text: str) -> CallLine:
        called, begin = self.clock.now(), self.clock.monotonic()
        answer: Answer = "given"
        error = ""
        try:
            proxy.command_inout(command, text)
        except tango.DevFailed as failed:
            error = failed.args[0].desc
            answer = answer_of(failed.args[0].reason, error)
        took = self.clock.monotonic() - begin
        return CallLine(device=device, command=command, called=called, seconds=took, answer=answer, text=error)

    def _try_what_is_forbidden(self) -> None:
        """Let the next role try an act that its rights forbid."""
        security, roles = self.deployment.endpoints.security, [*self.deployment.icd.roles]
        if security is None or len(self._forbidden) == len(roles):
            return
        settings, role = self.deployment.settings, roles[len(self._forbidden)]
        login = security.kafka_settings(name_of(role))
        config = {"bootstrap.servers": settings.bootstrap, "log_level": 0, **login}
        may = {one.name for one in rights.of_role(self.deployment.icd, role, settings) if one.operation == "Write"}
        topics = sorted({settings.prefix + topic for topic in self.deployment.icd.topics} - may)
        answers: list[str] = []
        if topics:
            topic = self._chance.choice(topics)
            producer = Producer(config)
            producer.produce(topic, b"x", on_delivery=lambda error, _: answers.append(error.name() if error else _DONE))
            producer.flush(WHOLE_WITHIN)
            self._forbidden.append((role, f"write to {topic}", answers[0] if answers else _DONE))
            return
        name = settings.prefix + slot_name("aggregate", "0")
        try:
            Producer({**config, "transactional.id": name}).init_transactions(READY_WITHIN)
            answers.append(_DONE)
        except KafkaException as error:
            answers.append(error.args[0].name())
        self._forbidden.append((role, f"write transactions as {name}", answers[0]))

    def _calls_alone(self) -> list[CallLine]:
        """Return the calls of commands made while no two brokers could confirm one."""
        calls = read_calls(self._all[accidents.COMMANDS].deployment.folder / "calls.jsonl")
        return [one for one in calls if any(begin <= one.called <= end - _BAR for begin, end in self._alone)]

    def _has_ended_alone(self, one: CallLine) -> bool:
        """Return whether a call also ended in that time: brokers that are back may have confirmed a longer one."""
        return any(begin <= one.called and one.called + one.seconds <= end for begin, end in self._alone)


def _refusals(what: str, alone: Sequence[CallLine]) -> list[tuple[str, int | str]]:
    """Return the rows about acts that no two brokers could confirm; those that are not possible at all left out."""
    refused = [one for one in alone if one.answer in _UNCONFIRMED]
    times = [one.seconds for one in refused]
    late = sum(seconds > _BAR for seconds in times)
    rows: list[tuple[str, int | str]] = [(f"{what} refused while no two brokers could confirm one", len(refused))]
    for answer in _UNCONFIRMED:
        reasons = [one.text for one in refused if one.answer == answer]
        rows += [(f"... {answer}", len(reasons)), ("... ... a reason", reasons[-1])] if reasons else []
    longest_wait = f"{max(times, default=0.0):.3f} s{f', missed by {late}' * (late > 0)}"
    return [*rows, (f"... the longest wait, which is to be at most {_BAR:g} s", longest_wait)]

"""`sdp-facade prove FLOW`: records of one flow are sent while faults are injected, and each record is accounted for.

A flow is a subclass of `FaultRun`. It has the parts, the faults and the records of a run. Its account
compares the records sent (expected) with topics, devices and clients (observed). The frame does the rest: it starts all
parts, injects the faults of one schedule, starts killed parts again, and prints the account.
"""

import math
import random
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, NamedTuple

import typer
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from rich.markup import escape

from facade.flows.telemetry.plan import windowed
from facade.infra.kafka import libraries
from facade.infra.processes import Process
from facade.kernel.bus.kafka.admin import ask_coordinator
from facade.kernel.bus.kafka.bus import KafkaBus
from facade.kernel.bus.port import Reader
from facade.kernel.clock import SystemClock
from facade.kernel.console import OUT, table
from facade.kernel.errors import BusError, ConfigError
from facade.kernel.manifest import manifests
from facade.kernel.runtime.stopping import terminable
from sdp_facade_lab.balance import Balance, longest
from sdp_facade_lab.deployment import Deployment
from sdp_facade_lab.fault_runs import evidence
from sdp_facade_lab.fault_runs.history import build_judge
from sdp_facade_lab.progress import ProgressLine
from sdp_facade_lab.testbed import testbed

BROKER, STANDSTILL = "broker", "standstills of the broker (SIGSTOP)"
RESET = "resets of the consumer group by an operator"
SERVER = "device server"
READY_WITHIN = 120.0
"""Time after which an awaited event counts as failed, on a machine of any speed [s]."""

_STANDS = (0.3, 2.5)
"""Shortest and longest time for which the broker stands still [s]."""
_RESET_WITHIN, _COORDINATOR_WITHIN = 180.0, 60.0
_FURTHEST = 1_000
"""A group of few records is set to offsets up to this one, beyond their end."""
_LOOK = 0.02
_PROGRESS = 5.0
_MOST_SHOWN = 20

FLOWS = {
    "alerts": "sdp_facade_lab.fault_runs.alerts:AlertFaultRun",
    "blocks": "sdp_facade_lab.fault_runs.blocks:BlockFaultRun",
    "cluster": "sdp_facade_lab.fault_runs.cluster:ClusterRun",
    "commands": "sdp_facade_lab.fault_runs.commands:CommandFaultRun",
    "fuzz": "sdp_facade_lab.fault_runs.fuzz:Fuzz",
    "heaps": "sdp_facade_lab.fault_runs.heaps:HeapFaultRun",
    "logs": "sdp_facade_lab.fault_runs.logs:LogFaultRun",
    "mirror": "sdp_facade_lab.fault_runs.mirror:MirrorFaultRun",
    "overload": "sdp_facade_lab.fault_runs.overload:Overload",
    "replay": "sdp_facade_lab.fault_runs.replay:ReplayFaultRun",
    "rolling": "sdp_facade_lab.fault_runs.rolling:RollingUpgrade",
    "tables": "sdp_facade_lab.fault_runs.tables:TableFaultRun",
}
"""Where each run is; loaded only when it is made."""
FURTHER_WORKERS: Final = {
    "alerts-intake": ("alerts", "intake", "--slot", "0"),
    "tables-assemble": ("tables", "assemble", "--slot", "0"),
}
"""Workers that a whole system does not have, with their sub-commands."""
ALWAYS = 1_000_000
"""Number of kills of a run that injects faults until its end."""


class Size(NamedTuple):
    """Size of a run."""

    amount: int
    kills: int
    """Of each part."""


class FaultRun:
    """One run of a flow.

    Parameters
    ----------
    seed
        Of the records and of the schedule of faults.
    quick
        Whether the run is a short one.
    """

    unit: ClassVar[str]
    """Meaning of the count."""
    all_is_well: ClassVar[str]
    """Printed if nothing is wrong."""
    full: ClassVar[Size]
    short: ClassVar[Size]
    """Size with ``--quick``."""
    most: ClassVar[int] = sys.maxsize
    """Largest count."""
    settings: ClassVar[Mapping[str, Any]] = {"nodes": 1}
    """Settings of the deployment."""
    brokers: ClassVar[int] = 1
    secured: ClassVar[int] = 0
    """Number of brokers with ``--secure``; 0: it cannot have it."""
    has_history: ClassVar[bool] = False
    """Whether it can have a history judged by Porcupine."""
    is_judged: bool = False
    is_whole: ClassVar[bool] = False
    """Whether all device servers and workers run before the run begins, rather than only its own parts."""
    faults: ClassVar[Sequence[str]] = ()
    """Names of parts that are killed, and other faults; each comes once, in random order, then again."""
    between: tuple[float, float] = (0.0, 0.0)
    """Shortest and longest time between two faults [s]."""
    group: ClassVar[str] = ""
    """Consumer group of workers that `RESET` resets; also before the run begins, when it has committed nothing."""
    members: ClassVar[Sequence[str]] = ()
    """Parts that are its members."""
    evidence: ClassVar[Sequence[str]] = ()
    """Topics whose records are kept if a run finds something."""
    standstill: ClassVar[float] = 90.0
    """Time without progress after which missing records count as lost [s]."""

    def __init__(self, deployment: Deployment, size: Size, seed: int, *, quick: bool = False) -> None:
        self.deployment, self.progress, self.clock = deployment, deployment.progress, deployment.clock
        self.count, self.kills, self.seed, self.quick = *size, seed, quick
        self.chance = random.Random(seed)  # noqa: S311 - a schedule that can be repeated
        self.injected = Counter(dict.fromkeys(self.faults, 0))
        self.left = size.kills * len(self.faults)
        """Number of faults still to come."""
        self.moved = 0.0
        """When the records moved last; the time that a fault takes does not count as a standstill."""
        self.within = math.inf
        """Time after which no further fault comes [s], in runs with `--minutes`."""
        self.broker_away = 0.0
        """Longest time from a kill of the broker until it took connections again [s]."""
        self._done = 0.0
        self._next: list[str] = []
        self._next_at = 0.0
        self.prepare()

    @classmethod
    def before(cls) -> None:
        """Change this process as all others of the run are to have it; not even brokers have been started."""

    def prepare(self) -> None:
        """Make what the run works on; nothing has been started."""

    def parts(self) -> Mapping[str, Callable[[], Process]]:
        """Return the call that starts each part."""
        raise NotImplementedError

    def begin(self) -> None:
        """Begin to send; all parts have been started."""

    def step(self) -> bool:
        """Send records that are due; return whether the run goes on."""
        raise NotImplementedError

    def stop_sending(self) -> None:
        """Send no more: the run ends when all that was sent has come."""
        raise NotImplementedError

    def count_arrived(self) -> int:
        """Count the records that have arrived where the flow ends."""
        raise NotImplementedError

    def in_words(self) -> str:
        raise NotImplementedError

    def faults_in_words(self) -> str:
        return f"faults: {', '.join(f'{fault} {count}' for fault, count in self.injected.items() if count) or 'none'}"

    def named(self, fault: str) -> str:
        return fault if fault in (STANDSTILL, RESET) else f"kill -9 of the {fault}"

    def account(self) -> Balance:
        """Compare expected and observed; all parts run."""
        raise NotImplementedError

    def run(self) -> Balance:
        self.deployment.register()
        if RESET in self.faults:
            self._reset_group()
        self.revive()
        self.begin()
        self.moved = said = self.clock.monotonic()
        self._next_at = said + self.chance.uniform(*self.between)
        while self.step():
            if fault := self.due():
                self.injected[fault] += 1
                begin = self.clock.monotonic()
                self.inject(fault)
                self.moved += self.clock.monotonic() - begin
                self._next_at = self.clock.monotonic() + self.chance.uniform(*self.between)
            self.revive()
            if self.clock.monotonic() - said >= _PROGRESS:
                said = self.clock.monotonic()
                self.progress.step(f"  {self.in_words()}; {self.faults_in_words()}")
            self.clock.sleep(_LOOK)
        self.revive()
        account = self.account()
        if BROKER in self.faults:
            account.rows.append(("longest absence of the broker after its kill", f"{self.broker_away:.1f} s"))
        return account

    def is_stuck(self, done: float) -> bool:
        """Take note of the progress of a run; return whether it has stood still for too long."""
        if done != self._done:
            self._done, self.moved = done, self.clock.monotonic()
        return self.clock.monotonic() - self.moved > self.standstill

    def due(self) -> str:
        """Return the fault that is due; empty: none."""
        if self.clock.monotonic() < self._next_at or not self.left:
            return ""
        self.left -= 1
        self._next = self._next or self.chance.sample(self.faults, len(self.faults))
        return self._next.pop()

    def revive(self) -> None:
        running = {process.name: process for process in self.deployment.processes if process.is_alive}
        for name, start in self.parts().items():
            if process_name(name) not in running:
                start()

    def open_reader(self, topic: str) -> Reader:
        """Open a reader of a topic from its beginning on; brokers of a busy machine may be slow to answer."""
        bus = KafkaBus(self.deployment.connection, client="fault-run")
        opened: list[Reader] = []

        def is_open() -> bool:
            with suppress(BusError):
                opened.append(bus.open_reader({topic: None}, {}))
            return bool(opened)

        self.demand(is_open, READY_WITHIN, f"a reader of {topic}")
        return opened[0]

    def demand(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait for a condition, and keep every part running."""

        def holds() -> bool:
            self.revive()
            return condition()

        self.progress.demand(holds, seconds, what)

    def inject(self, fault: str) -> None:
        if fault == STANDSTILL:
            with self.deployment.broker.frozen():
                self.clock.sleep(self.chance.uniform(*_STANDS))
        elif fault == BROKER:
            begin = self.clock.monotonic()
            self.deployment.broker.kill()
            self.deployment.broker.start()
            self.broker_away = max(self.broker_away, self.clock.monotonic() - begin)
        elif fault == RESET:
            self._reset_group()
        else:
            self.deployment.processes.kill(process_name(fault))

    def _reset_group(self) -> None:
        """Delete the group, set it on some partitions, or both, when the brokers know that its members are gone."""
        prefix, icd = self.deployment.settings.prefix, self.deployment.icd
        group = prefix + self.group
        # A client of its own: one whose connection ended with a broker may abort the process (librdkafka issue 5397).
        admin = AdminClient({"bootstrap.servers": self.deployment.settings.bootstrap, "log_level": 0})
        ask = partial(ask_coordinator, group=group, within=_COORDINATOR_WITHIN)
        members = {process_name(one) for one in self.members}
        for process in self.deployment.processes:
            if process.name in members:
                self.deployment.processes.kill(process.name)
        (read,) = (one.reads(windowed(icd)) for flow in manifests() for one in flow.workers if one.name == self.group)
        places = [(name, number) for name in sorted(read) for number in range(icd.topics[name].partitions)]
        is_deleted = self.chance.random() < 0.5
        chosen = self.chance.sample(places, self.chance.randint(not is_deleted, len(places)))
        most = max(self.count, _FURTHEST)
        offsets = [TopicPartition(prefix + name, number, self.chance.randrange(most)) for name, number in chosen]

        def is_done() -> bool:
            with suppress(KafkaException):  # the session of a member has not ended yet
                if is_deleted:
                    try:
                        ask(admin.delete_consumer_groups)
                    except KafkaException as error:
                        if error.args[0].code() != KafkaError.GROUP_ID_NOT_FOUND:
                            raise
                if not offsets:
                    return True
                altered = ask(admin.alter_consumer_group_offsets, about=ConsumerGroupTopicPartitions(group, offsets))
                return all(one.error is None for one in altered.topic_partitions)
            return False

        self.progress.demand(is_done, _RESET_WITHIN, "the consumer group is reset")


def process_name(part: str) -> str:
    return part.replace(" ", "-")


def prove(
    flow: Annotated[str, typer.Argument(metavar="FLOW", help=f"One of: {', '.join(FLOWS)}.")],
    count: Annotated[
        int | None,
        typer.Option(
            "--count", "--accidents", min=1, help="Commands, records or tables to send; seconds of overload; accidents."
        ),
    ] = None,
    kills: Annotated[int | None, typer.Option(min=0, help="Number of times that each part is killed.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the records and of the faults.")] = 1,
    minutes: Annotated[
        float | None, typer.Option(min=0.0, help="No further accident after this time; for cluster.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A short run, for a first look.")] = False,
    judge: Annotated[
        bool,
        typer.Option("--judge", help="Have Porcupine judge the history of TM's clients (needs Go); commands, cluster."),
    ] = False,
    secure: Annotated[
        bool, typer.Option("--secure", help="Three brokers with TLS, logins and rights; for cluster, rolling.")
    ] = False,
    folder: Annotated[
        Path, typer.Option(help="Folder for the broker, the Tango database and the logs of the run.")
    ] = Path(".run"),
) -> None:
    """Send records of a flow while parts of the system are killed (kill -9), and account for each record.

    The exit code is 1 when a record was lost, doubled, or changed without a report of it.

    Example: sdp-facade prove commands --quick
    """
    if flow not in FLOWS:
        raise ConfigError(f"FLOW: expected one of {', '.join(FLOWS)}, got {flow!r}")
    module, _, name = FLOWS[flow].partition(":")
    made: type[FaultRun] = getattr(import_module(module), name)
    size = made.short if quick else made.full
    size = Size(size.amount if count is None else count, size.kills if kills is None else kills)
    if size.amount > made.most:
        raise ConfigError(f"--count: expected at most {made.most:,} for {flow}, got {size.amount:,}")
    if secure and not made.secured:
        raise ConfigError(f"--secure: expected cluster or rolling, got {flow}")
    if minutes is not None and made.brokers == 1:
        raise ConfigError(f"--minutes: expected cluster, got {flow}")
    if judge and not made.has_history:
        raise ConfigError(f"--judge: expected commands or cluster, got {flow}")
    progress = ProgressLine(OUT, SystemClock())
    # Downloads come first: `before` may take the network away, and an hour is too long to wait for an error.
    libraries(progress.step)
    if judge:
        build_judge()
    made.before()
    brokers = made.secured if secure else made.brokers
    with terminable(), testbed(folder, progress, brokers=brokers, secure=secure) as bed:
        with (bed.system if made.is_whole else bed.deployment)(f"prove-{flow}", **made.settings) as deployment:
            run = made(deployment, size, seed, quick=quick)
            run.within = math.inf if minutes is None else 60.0 * minutes
            run.is_judged = judge
            account = run.run()
            if account.wrong and run.evidence:
                kept = folder / f"finding-{flow}-{seed}"
                evidence.keep(deployment.connection, bed.folder, run.evidence, kept)
                progress.step(f"kept, as the run has findings: {kept}")
    _print(progress, f"{size.amount:,} {made.unit}, seed {seed}", run, account)
    if account.wrong:
        raise typer.Exit(1)
    progress.console.print(made.all_is_well)


def _print(progress: ProgressLine, title: str, run: FaultRun, account: Balance) -> None:
    figures = [*((run.named(fault), times) for fault, times in run.injected.items()), *account.rows]
    rows = ((what, number if isinstance(number, str) else f"{number:,}") for what, number in figures)
    tables = [table(("what", "number"), rows, title=title)]
    if len(account.tallies) > 1:
        flows = (
            (flow, *(f"{count:,}" for count in counts), f"{longest(gaps):.1f} s")
            for flow, (*counts, gaps) in account.tallies.items()
        )
        tables.append(table(("flow", "sent", "found", "lost", "doubled", "longest silence"), flows))
    for one in (*tables, *account.tables):
        progress.console.print(one)
    for text in account.wrong[:_MOST_SHOWN]:
        progress.console.print(f"[red]wrong[/red]  {escape(text)}")
    if account.wrong:
        progress.console.print(f"{len(account.wrong)} findings")

"""The process of a worker: the transaction loop of any flow, from its command line to its end."""

import gc
import itertools
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, NamedTuple, NoReturn, Protocol

import typer

from facade.kernel.bus.kafka.admin import members_of
from facade.kernel.bus.kafka.bus import KafkaBus
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.kafka.producer import KafkaWriter
from facade.kernel.bus.kafka.transactions import KafkaTransactionalLog
from facade.kernel.bus.port import BusHealth, Writer
from facade.kernel.clock import Clock, today
from facade.kernel.config import Settings, load_settings
from facade.kernel.icd.load import load
from facade.kernel.icd.model import Icd
from facade.kernel.icd.topic_model import slot_name
from facade.kernel.logs import start_log_export, start_logging
from facade.kernel.manifest import load as load_reference
from facade.kernel.manifest import manifests
from facade.kernel.runtime.accounts import RunningAccount
from facade.kernel.runtime.flow import Alerts
from facade.kernel.runtime.heartbeats import INTERVAL, Pulse, SignOfLife
from facade.kernel.runtime.metrics import serve_metrics
from facade.kernel.runtime.replay import ReplayFollower, broker_time, clock_of
from facade.kernel.runtime.stopping import end_process, stopping

Slot = Annotated[
    str, typer.Option(help="Name of this worker's slot; a running worker that has it is replaced. [empty: a free one]")
]
"""Option of the sub-command that runs a worker."""
FREE = ""
"""The lowest number that no running worker has for its slot."""


class Worker(Protocol):
    """A worker, for its process."""

    @property
    def accounts(self) -> Mapping[str, RunningAccount]:
        """Return its accounts by topic."""

    def step(self) -> None:
        """Make one turn of the loop."""

    def finish(self) -> None:
        """Commit the open transaction, and leave."""


class Site(NamedTuple):
    """The parts of a worker."""

    icd: Icd
    settings: Settings
    connection: Connection
    clock: Clock
    role: str
    """Role of the worker in the ICD."""
    slot: str

    @property
    def group(self) -> str:
        """Return the consumer group of the role, without the deployment's prefix."""
        return self.icd.roles[self.role].group

    @property
    def outputs(self) -> list[str]:
        """Return the topics that the worker writes to in transactions, and so reads at its start."""
        return self.icd.outputs(self.role)

    @property
    def name(self) -> str:
        """Return the name of the worker: role and slot."""
        return slot_name(self.role, self.slot)

    def log(self, *topics: str) -> KafkaTransactionalLog:
        """Join the group of some topics."""
        return KafkaTransactionalLog(
            self.connection,
            *topics,
            group=self.group,
            slot=self.slot,
            health=BusHealth(),
            outputs=self.outputs,
            broker_time=broker_time(self.clock),
        )

    def alerts(self, source: str, writer: Writer) -> Alerts:
        """Return the alert source of a component."""
        return open_alerts(source, writer, self.clock)


def open_alerts(source: str, writer: Writer, clock: Clock) -> Alerts:
    """Return the alert source of a component, for programs of all flows."""
    (reference,) = [one.alert_source for one in manifests() if one.alert_source is not None]
    made: Alerts = load_reference(reference)(source, writer, clock)
    return made


def free_slot(members: Collection[str], group: str) -> str:
    """Return the lowest number of a slot that no member of a group has."""
    return next(slot for slot in map(str, itertools.count()) if slot_name(group, slot) not in members)


def run_worker(role: str, slot: str, make: Callable[[Site], Worker]) -> NoReturn:
    """Run a worker until SIGTERM or SIGINT, and end the process.

    Parameters
    ----------
    role
        Role of the worker in the ICD.
    slot
        Name of its slot, or `FREE`.

    Raises
    ------
    FacadeError
        A setting is wrong, or another process has taken the slot.
    """
    # Batches of 10,000 messages trigger the garbage collector again and again; they hold no cycles.
    gc.set_threshold(100_000)
    settings = load_settings()
    clock = clock_of(settings)
    connection, icd = Connection(settings, clock=clock), load()
    slot = slot or free_slot(members_of(connection, icd.roles[role].group), icd.roles[role].group)
    site = Site(icd, settings, connection, clock, role, slot)
    name = site.name
    start_logging(f"worker:{name}")
    start_log_export(site.icd, settings, name, today(clock))
    with stopping() as stopped:
        worker = make(site)
        serve_metrics(worker.accounts)
        writer = KafkaWriter(site.connection, health=BusHealth(), client=f"{name}-heartbeats")
        pulse = Pulse(SignOfLife(name, "worker", writer.send, today(clock)), clock)
        pulse.start()
        follower = ReplayFollower(lambda: KafkaBus(connection, client=f"{name}-replay"), clock)
        while not stopped():
            follower.step()
            worker.step()
            pulse.came_round()
        worker.finish()
        pulse.end()
        writer.close(INTERVAL)
    end_process()  # everything is committed

"""Guards of the facade, each taken out once: the simulation must find every one of them."""

import secrets
import time
from collections.abc import Iterable
from typing import Any, NamedTuple
from unittest.mock import patch

from confluent_kafka import KafkaException
from msgspec.structs import replace

from facade.flows.alerts import flow as alerts_flow
from facade.flows.alerts.flow import AlertsFlow
from facade.flows.alerts.follower import Follower
from facade.flows.blocks import source as block_source
from facade.flows.blocks.flow import BlocksFlow
from facade.flows.commands.lease import Lease
from facade.flows.commands.messages import ack_record, order_id
from facade.flows.commands.tracker import Tracker
from facade.flows.mirror import mirror
from facade.flows.mirror.device import MirroredAttribute, MirroredDevice
from facade.flows.mirror.mirror import Mirror
from facade.flows.mirror.source import DeviceJob, JobResult
from facade.flows.tables import assembly, worker
from facade.flows.tables.assembly import Assembly
from facade.flows.tables.references import ReferenceReader
from facade.flows.tables.worker import MOST_LOOKED_INTO
from facade.flows.telemetry import view
from facade.flows.telemetry.watermarks import Watermarks
from facade.kernel.bus import offsets
from facade.kernel.bus.kafka import transactional_producer, transactions
from facade.kernel.bus.kafka.reader import KafkaReader
from facade.kernel.bus.kafka.transactions import KafkaTransactionalLog
from facade.kernel.bus.offsets import ACCOUNTS, PartitionPositions
from facade.kernel.bus.port import Record
from facade.kernel.outcome import TOMBSTONE
from facade.kernel.runtime.heartbeats import Heartbeats
from facade.kernel.runtime.progress import Progress
from facade.kernel.runtime.publisher import Sampler
from facade.kernel.windows import newest
from facade.sdk.controller import call, orders
from facade.sdk.controller.command_loop import Handling
from facade.sdk.controller.execution_state import Execution
from facade.sdk.controller.ownership import Owner, Ownership
from facade.sdk.producer.spool import Spool
from tests.simulation.controllers import GROUP, PAIR, Controllers
from tests.simulation.run import Result, run

BUDGET = 60.0
"""Processor time within which a mutant must be found [s]."""


class Mutant(NamedTuple):
    """One guard that is taken out."""

    guard: str
    where: Any
    name: str
    put: Any
    """What stands in its place."""
    flow: str = "telemetry"
    """What runs beside telemetry while it is looked for.

    pair: commands with two controllers, and no telemetry; orders: with one, and one that executes its orders.
    """


def _group_is_believed(place: Any, own: Any, facts: Any) -> Any:
    return offsets.Beginning(facts.topic_id, min(max(facts.group, facts.first), facts.end))


def _uncommitted(self: KafkaReader, *args: Any, committed: bool = True, **more: Any) -> None:
    _open_reader(self, *args, committed=False, **more)


def _commit_twice(self: KafkaTransactionalLog, records: Iterable[Record]) -> None:
    """Commit offsets and accounts before the summaries are there: in a transaction of their own.

    Offsets alone are no fault: a worker whose accounts are behind its position takes the records again.
    """
    all_of_them = list(records)
    _commit(self, [one for one in all_of_them if one.topic == ACCOUNTS])
    _commit(self, [one for one in all_of_them if one.topic != ACCOUNTS])


def _no_way_back(self: KafkaTransactionalLog, error: KafkaException) -> None:
    """Go on after a transaction that failed, without going back to what is committed."""
    self._producer.close()
    raise transactions.Aborted(str(error)) from error


def _remembered_ends(self: KafkaTransactionalLog, places: Iterable[tuple[str, int]]) -> None:
    """Take the ends that the client remembers for those that the broker has now."""
    for place in places:
        if place in self._positions.ranges and self._is_at_end(place):
            self._positions.is_read(place, self.broker_time)


def _counts_all(self: Progress, record: Any) -> Any:
    self.next.pop(record.partition, None)
    return _take(self, record)


def _snapshot_of_nothing(self: Progress, *args: Any, **more: Any) -> Any:
    """Write where a flow is without what it has made of the records before."""
    return replace(_snapshot(self, *args, **more), ledger={})


def _places_ahead(self: Progress, *args: Any, **more: Any) -> Any:
    """Write a place some records behind what was folded: the last offsets are marks of transactions."""
    made = _snapshot(self, *args, **more)
    return replace(made, offsets={one: max(at - 4, 0) for one, at in made.offsets.items()})


def _one_partition(self: Watermarks, sources: Any, summaries: Any) -> int:
    return max((_read_to(self, [source], summaries) for source in sources or range(self.partitions)), default=0)


def _first_only(self: AlertsFlow, now: float) -> list[Any]:
    """Write the state of one alarm of all that have changed."""
    return _records(self, now)[:1]


def _at_once(self: Sampler, now: float) -> Any:
    return None if self._held is None else self._send(self._held, now)


def _forgets(self: Assembly, *args: Any) -> None:
    """Keep nothing of a table that has ended."""


def _keeps_removed(self: BlocksFlow, record: Record, *, count: bool) -> Any:
    return TOMBSTONE if record.value is None else _fold_block(self, record, count=count)


def _newest_first(self: Spool) -> bool:
    """Let the disk have a batch before those that wait in memory."""
    self._in_memory.rotate(1)
    try:
        return _save(self)
    finally:
        self._in_memory.rotate(-1)


def _marks_nothing(self: Spool, *, done: int, posted: int) -> bool:
    """Say what is done, and not what may be on the bus."""
    return _mark(self, done=done, posted=done)


def _verified_by_workers(self: ReferenceReader) -> None:
    """Verify what is announced, and not what a device server fetches of it."""
    if self._pool.memory == MOST_LOOKED_INTO:
        _verify(self)


def _goes_on(self: ReferenceReader) -> Any:
    """Keep what an attempt has got that was cut short."""
    kept, self.buffer = self.buffer, self._pool.buffer()
    source = _open(self)
    self.buffer = kept
    return source


_verify, _open = ReferenceReader._verify, ReferenceReader._open
_save, _mark = Spool.save, Spool.mark


def _accepts_unheard(self: Handling, execution: Execution) -> bool:
    """Write ACCEPTED, and do not wait for it."""
    ack = self.outbox.ack(execution.message, "ACCEPTED")
    self.outbox.write(execution, [ack_record(ack, execution.headers)])
    within = max(execution.message.not_after - self.outbox.now_us(), 0) / 1e6
    if not execution.message.repeatable and self.ownership.check(execution, within=within) is Owner.UNKNOWN:
        return False
    return True


def _is_sure(self: MirroredDevice, now: float) -> DeviceJob:
    """Take no subscription for one that may lose events while it is made."""
    job = _job(self, now)
    for name in job.subscribe:
        self.entries[name].is_unsure = False
    return job


def _takes_for_read(self: Mirror, done: JobResult, now: float) -> None:
    """Take a device whose subscription has failed for one that pushes nothing."""
    _done(self, done._replace(failed=frozenset()), now)


def _recalls_nothing(self: Mirror, records: Iterable[Record]) -> None:
    """Know nothing of what the mirror before has written."""


_job, _done = MirroredDevice.job, Mirror._done
_open_reader = KafkaReader.__init__
_fold_block = BlocksFlow.fold
_commit = KafkaTransactionalLog.commit
_records = AlertsFlow.records
_read_to = Watermarks.read_to
_take, _snapshot = Progress.take, Progress.snapshot

MUTANTS = (
    Mutant("D1: a worker's own position is compared with the group's", offsets, "begin", _group_is_believed),
    Mutant(
        "0019: a producer that lost a connection begins no further transaction", transactional_producer.Link, "log",
        lambda self, *_: None,
    ),
    Mutant("a device server reads committed records", KafkaReader, "__init__", _uncommitted),
    Mutant("offsets are committed with the effect, not before", KafkaTransactionalLog, "commit", _commit_twice),
    Mutant("after a transaction that failed a worker goes back", KafkaTransactionalLog, "_give_up", _no_way_back),
    Mutant("what is read again after a restart is not counted again", Progress, "take", _counts_all),
    Mutant("a snapshot has place and totals of one moment", Progress, "snapshot", _snapshot_of_nothing),
    Mutant("a snapshot's place is behind the last record folded", Progress, "snapshot", _places_ahead),
    Mutant("offsets of the transaction are those behind the last record", PartitionPositions, "take",
           lambda self, place, after, appended=0: None),
    Mutant("a partition is read when the broker says where it ends", KafkaTransactionalLog, "ask_ends",
           _remembered_ends),
    Mutant("a window over all groups is closed when all partitions are read", Watermarks, "read_to", _one_partition),
    Mutant("a command is not begun late", Handling, "is_late", lambda self, execution: False, "commands"),
    Mutant("a call with a transaction_id that was sent before is not sent again", Tracker, "of_transaction",
           lambda self, *_: None, "commands"),
    Mutant("alerts: a packet whose intake was cut short is one alert", AlertsFlow, "_is_again",
           staticmethod(lambda *_: False), "alerts"),
    Mutant("alerts: an action that was sent twice is one action", alerts_flow, "_is_known",
           lambda *_: False, "alerts"),
    Mutant("a table that comes again is not announced again", Assembly, "end", _forgets, "tables"),
    Mutant("alerts: a client asks for what it has missed", Follower, "missing", lambda self: None, "alerts"),
    Mutant("the state of each alarm that changed is written", AlertsFlow, "records", _first_only, "alerts"),
    Mutant("two events are as far apart as the ICD says", Sampler, "due", _at_once),
    Mutant("in silence what is shown turns INVALID", view, "stale_after", lambda *_: 0.0),
    Mutant("a component that gives no sign of life is not alive", Heartbeats, "alive",
           lambda self, component: component in self.newest),
    Mutant("of two servers of one name one gives commands", Lease, "why_not_held", lambda self, *_: "", "commands"),
    Mutant("logs: offsets are committed with the effect, not before", KafkaTransactionalLog, "commit", _commit_twice,
           "logs"),
    Mutant("logs: after a transaction that failed a worker goes back", KafkaTransactionalLog, "_give_up", _no_way_back,
           "logs"),
    Mutant("a block that is removed is counted no more", BlocksFlow, "fold", _keeps_removed, "blocks"),
    Mutant("a controller whose clock was set back goes on after its earlier states", block_source, "newest_sequence",
           lambda *_: 0, "blocks"),
    Mutant("who stood still tells no state of a command that another controller has begun", Ownership, "require",
           lambda self, execution: None, "pair"),
    Mutant("what another controller has begun and must not be repeated is left to it", Handling, "is_settled",
           lambda self, execution: False, "pair"),
    Mutant("a command begins when ACCEPTED is on the bus", Handling, "_accept", _accepts_unheard, "pair"),
    Mutant("an order that is given again has the same id", orders, "order_id",
           lambda parent, device, name, number: order_id(parent, device, name, number + secrets.randbelow(9000)),
           "orders"),
    Mutant("a command is done when its orders are", call, "require", lambda _: None, "orders"),
    Mutant("a spool's mark says what was in memory alone when its process ended", Spool, "_hold",
           lambda *_: None, "spools"),
    Mutant("a spool has the older batches on disk, and the newer ones in memory", Spool, "save", _newest_first,
           "spools"),
    Mutant("a spool's mark says what may be on the bus before it is sent", Spool, "mark", _marks_nothing, "spools"),
    Mutant("a table that our disk has not taken may be sent again", assembly, "_is_sent_again", lambda *_: False,
           "tables"),
    Mutant("a table by reference is announced once its checksum is right", ReferenceReader, "_verify",
           lambda self: None, "references"),
    Mutant("what a device server holds of a table by reference has the right checksum", ReferenceReader, "_verify",
           _verified_by_workers, "references"),
    Mutant("a reference that could not be read may be sent again", worker, "MAY_BE_SENT_AGAIN", (), "references"),
    Mutant("an attempt to read a reference begins from the beginning", ReferenceReader, "_open", _goes_on,
           "references"),
    Mutant("only the newest windows are kept", newest, "_KEPT", 1_000_000),
    Mutant("mirror: events that are missed are a gap", MirroredAttribute, "miss", lambda self: None, "mirror"),
    Mutant("mirror: what is pushed is read now and then", mirror, "CHECK", 1e9, "mirror"),
    Mutant("mirror: what is pushed while a subscription is made is a gap", MirroredDevice, "job", _is_sure, "mirror"),
    Mutant("mirror: what is pushed while a subscription is made is read", mirror, "CONFIRM", 1e9, "mirror"),
    Mutant("mirror: a subscription that fails says nothing of what is pushed", Mirror, "_done", _takes_for_read,
           "mirror"),
    Mutant("mirror: a mirror that starts knows the records before it", Mirror, "recall", _recalls_nothing, "mirror"),
)  # fmt: skip
"""What is taken out, and how."""


def _run(mutant: Mutant, seed: int) -> Result:
    if mutant.flow == "pair":
        return run(seed, 60.0, flows=["commands"], controllers=Controllers(PAIR, gives_orders=False))
    if mutant.flow == "orders":
        return run(seed, 60.0, flows=["commands"], controllers=Controllers((GROUP,), gives_orders=True))
    return run(seed, 60.0, flows=dict.fromkeys(("telemetry", mutant.flow)))


def hunt(mutant: Mutant, budget: float = BUDGET) -> tuple[Result | None, float]:
    """Run one seed after the other with a mutant, until it is found; return that run, and the processor time [s]."""
    began = time.process_time()
    with patch.object(mutant.where, mutant.name, mutant.put):
        for seed in range(1, 1000):
            result = _run(mutant, seed)
            spent = time.process_time() - began
            if result.failures:
                return result, spent
            if spent > budget:
                break
    return None, time.process_time() - began

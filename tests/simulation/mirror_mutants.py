"""Guards of the mirror, each taken out once; see `tests.simulation.mutants`."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from facade.bus.port import Record
from facade.flows.mirror import mirror
from facade.flows.mirror.device import MirroredAttribute, MirroredDevice
from facade.flows.mirror.mirror import Mirror
from facade.flows.mirror.source import DeviceJob, JobResult


class Guard(NamedTuple):
    """One guard, what it is, and what stands in its place."""

    guard: str
    where: Any
    name: str
    put: Any


def _is_sure(self: MirroredDevice, now: float) -> DeviceJob:
    """Take no subscription for one that may lose events while it is made."""
    job = _job(self, now)
    for name in job.subscribe:
        self.entries[name].is_unsure = False
    return job


def _takes_for_read(self: Mirror, done: JobResult, now: float) -> None:
    """Take a device whose subscription has failed for one that pushes nothing."""
    _done(self, done._replace(failed=frozenset()), now)


def _forgets(self: Mirror, records: Iterable[Record]) -> None:
    """Know nothing of what the mirror before has written."""


_job, _done = MirroredDevice.job, Mirror._done


def guards() -> Iterator[Guard]:
    yield Guard("events that are missed are a gap", MirroredAttribute, "miss", lambda self: None)
    yield Guard("what is pushed is read now and then", mirror, "CHECK", 1e9)
    yield Guard("what is pushed while a subscription is made is a gap", MirroredDevice, "job", _is_sure)
    yield Guard("what is pushed while a subscription is made is read", mirror, "CONFIRM", 1e9)
    yield Guard("a subscription that fails says nothing of what is pushed", Mirror, "_done", _takes_for_read)
    yield Guard("a mirror that starts knows the records before it", Mirror, "recall", _forgets)

"""``sdp-facade aggregate``: a worker that aggregates all windowed topics."""

from facade.flows.telemetry.plan import windowed
from facade.flows.telemetry.worker import telemetry_worker
from facade.kernel.runtime.worker import TransactionalWorker
from facade.kernel.runtime.worker_process import FREE, Site, Slot, run_worker


def aggregate(slot: Slot = FREE) -> None:
    """Aggregate the records of all windowed topics, exactly-once: one worker of the group.

    Run one per core, each with its own slot; more than the topics have partitions stand by.

    Example: sdp-facade aggregate --slot 0
    """
    run_worker("aggregate", slot, _worker)


def _worker(site: Site) -> TransactionalWorker:
    return telemetry_worker(site.log(*windowed(site.icd)), site.icd, site.settings, slot=site.slot, clock=site.clock)

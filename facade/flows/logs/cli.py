"""`sdp-facade logs`: the worker that sums up logs and metrics."""

from facade.flows.logs.messages import TOPICS
from facade.flows.logs.worker import log_worker
from facade.kernel.runtime.worker import TransactionalWorker
from facade.kernel.runtime.worker_process import FREE, Site, Slot, run_worker


def aggregate(slot: Slot = FREE) -> None:
    """Sum up logs and metrics of nodes, exactly-once: one worker of the group.

    Run one per core, each with its own slot; more than the topics have partitions stand by.

    Example: sdp-facade logs aggregate --slot 0
    """
    run_worker("logs-aggregate", slot, _worker)


def _worker(site: Site) -> TransactionalWorker:
    return log_worker(site.log(*TOPICS), site.icd, slot=site.slot, clock=site.clock)

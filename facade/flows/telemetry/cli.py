"""``sdp-facade aggregate``: a worker that reduces heap notifications."""

from facade.flows.telemetry.worker import SOURCE, Worker
from facade.runtime.worker_process import Slot, run_worker


def aggregate(slot: Slot = "0") -> None:
    """Reduce heap notifications to partials, exactly-once: one worker of the group.

    Run one per core, each with its own slot; more than the topic has partitions stand by.

    Example: sdp-facade aggregate --slot 0
    """
    run_worker(
        "aggregate",
        SOURCE,
        slot,
        lambda site: Worker(site.log(SOURCE), site.icd, site.settings, slot=slot, clock=site.clock),
    )

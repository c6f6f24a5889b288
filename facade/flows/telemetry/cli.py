"""``sdp-facade aggregate``: a worker that reduces heap notifications."""

import gc
import logging
import os
from typing import Annotated

import typer

from facade.bus.kafka.connection import Connection
from facade.bus.kafka.transactions import KafkaTransactionalLog
from facade.bus.port import BusHealth
from facade.cli.root import app
from facade.cli.stopping import stopping
from facade.clock import SystemClock
from facade.config import load_settings
from facade.flows.telemetry.worker import SOURCE, Worker
from facade.icd.load import load
from facade.logs import start_logging
from facade.runtime.metrics import serve_metrics

Slot = Annotated[str, typer.Option(help="Name of this worker's slot; each running worker needs its own.")]


@app.command()
def aggregate(slot: Slot = "0") -> None:
    """Reduce heap notifications to partials, exactly-once: one worker of the group.

    Run one per core, each with its own slot; more than the topic has partitions stand by.

    Example: sdp-facade aggregate --slot 0
    """
    start_logging(f"worker:aggregate-{slot}")
    # Batches of 10,000 messages make the collector look at them again and again; they hold no cycles.
    gc.set_threshold(100_000)
    icd, settings, clock = load(), load_settings(), SystemClock()
    log = KafkaTransactionalLog(
        Connection(settings, clock=clock), SOURCE, group="aggregate", slot=slot, health=BusHealth()
    )
    worker = Worker(log, icd, settings, slot=slot, clock=clock)
    serve_metrics({SOURCE: worker.account})
    with stopping() as stopped:
        while not stopped():
            worker.step()
    worker.finish()
    # Everything is committed; the client's destructor might never end, see facade.bus.kafka.transactions.
    logging.shutdown()
    os._exit(0)

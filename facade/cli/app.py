"""The sub-commands of ``sdp-facade`` that need no Tango; `devices.tango_cli` adds the others."""

import gc
import logging
import os
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from facade import __version__
from facade.bus.kafka.connection import Connection
from facade.bus.kafka.topics import create_topics
from facade.bus.kafka.transactions import KafkaTransactionalLog
from facade.bus.port import BusHealth
from facade.cli import icd as icd_commands
from facade.cli import infra as infra_commands
from facade.cli import simulate as simulate_commands
from facade.cli.alerts import alerts_app
from facade.cli.config import config_app
from facade.cli.exports import export_command
from facade.cli.icd_diff import diff_command
from facade.cli.stopping import stopping
from facade.cli.tables import tables_app
from facade.clock import SystemClock
from facade.config import load_settings
from facade.errors import FacadeError
from facade.icd.load import load
from facade.logs import start_logging
from facade.metrics import serve_metrics
from facade.notifications.worker import SOURCE, Worker

app = typer.Typer(
    name="sdp-facade",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
icd_commands.app.command("export")(export_command)
icd_commands.app.command("diff")(diff_command)
app.add_typer(icd_commands.app, name="icd", help="Look at the interface (ICD) and check it.")
app.add_typer(infra_commands.app, name="infra", help="Run Kafka and a Tango database on this machine.")
app.add_typer(simulate_commands.app)
app.add_typer(alerts_app, name="alerts")
app.add_typer(tables_app, name="tables")
app.add_typer(config_app, name="config")
topics = typer.Typer(no_args_is_help=True, help="Create the ICD's topics.")
app.add_typer(topics, name="topics")

_out = Console()
_err = Console(stderr=True)

Replicas = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Brokers that have each topic; all but one of them must confirm a record."
        " Default: the setting topic_replicas (SDP_TOPIC_REPLICAS).",
    ),
]
Slot = Annotated[str, typer.Option(help="Name of this worker's slot; each running worker needs its own.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def options(
    wanted: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Tango facade of the SKA Science Data Processor's Kafka bus."""


@app.command()
def version() -> None:
    """Print the version.

    Example: sdp-facade version
    """
    _out.print(__version__)


@topics.command()
def create(replicas: Replicas = None) -> None:
    """Create the topics that are missing, and say how the others differ from the ICD and in their replicas.

    What exists is never changed. Exits with 1 if something differs.

    Example: KAFKA_BOOTSTRAP=127.0.0.1:9092 SDP_TOPIC_PREFIX=test. sdp-facade topics create --replicas 3
    """
    settings, icd = load_settings(), load()
    wanted = settings.topic_replicas if replicas is None else replicas
    differences = create_topics(Connection(settings), icd.topics, replicas=wanted)
    for difference in differences:
        _err.print(f"differs: {difference}")
    if differences:
        raise typer.Exit(1)
    _out.print(
        f"{len(icd.topics)} topics with the prefix {settings.prefix!r} are as the ICD says, with replicas: {wanted}"
    )


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


def run(application: typer.Typer) -> None:
    """Run an application; a failure that we foresaw is one line, not a traceback."""
    try:
        application()
    except FacadeError as error:
        _err.print(f"[bold red]error:[/bold red] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(1)

"""What the simulators that send a stream have in common on the command line."""

import signal
from collections.abc import Callable
from pathlib import Path

import msgspec
from rich.markup import escape

from facade.bus.kafka.connection import Connection
from facade.bus.kafka.writer import KafkaStreamWriter
from facade.bus.port import BusHealth
from facade.clock import Clock
from facade.config import Settings, load_settings
from facade.console import Console
from facade.simulate.sender import PATIENCE, ReportT, Stop, StreamSender, write_report

console = Console(stderr=True, highlight=False, soft_wrap=True)
"""Progress goes to standard error."""

_BROKER_WAIT = 5.0


def deployment(bootstrap: str | None, prefix: str | None, **more: int | None) -> Settings:
    """Return the settings, with what the command line says in their place; None: it says nothing."""
    changes = {"bootstrap": bootstrap, "prefix": prefix, **more}
    return msgspec.structs.replace(load_settings(), **{k: v for k, v in changes.items() if v is not None})


def send(
    make: Callable[..., StreamSender[ReportT]],
    settings: Settings,
    topic: str,
    stop: Stop,
    *,
    client: str,
    file: Path | None,
    show: Callable[[ReportT], None],
    clock: Clock,
) -> ReportT:
    """Send a stream until it is time to stop or a signal comes, and give the final report.

    Parameters
    ----------
    make
        Makes the simulator, of an outlet and the keywords of `StreamSender`.
    file
        Is to have the report; refreshed each second.
    show
        Is given the report each second.
    """
    connection, health = Connection(settings, clock=clock), BusHealth()
    writer = KafkaStreamWriter(connection, health=health, client=client, patience=PATIENCE)
    if not writer.require_topic(topic, _BROKER_WAIT):
        console.print(f"[yellow]no broker answers at {escape(settings.bootstrap)} yet; trying on")

    def each_second(state: ReportT) -> None:
        if file is not None:
            write_report(state, file)
        show(state)

    simulator = make(
        writer,
        clock=clock,
        topic_name=connection.topic(topic),
        each_second=each_second,
        last_error=lambda: health.last_error,
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: simulator.stop())
    return simulator.run(stop)

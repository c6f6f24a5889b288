"""Common parts of the sub-commands that send a simulated stream.

Progress goes to standard error: a live line on a terminal, otherwise a plain line every five seconds.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.live import Live
from rich.markup import escape

from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.kafka.producer import KafkaStreamWriter
from facade.kernel.bus.port import BusHealth
from facade.kernel.clock import Clock, SystemClock
from facade.kernel.config import Settings, load_settings
from facade.kernel.console import ERR
from facade.kernel.runtime.stopping import on_stop
from facade.sdp.files import write_json
from facade.simulate.sender import PATIENCE, ReportT, Shape, Stop, Stream, StreamReport, StreamSender

_BROKER_WAIT = 5.0
_PLAIN_INTERVAL = 5.0

sending: Callable[..., Any] = partial(typer.Option, rich_help_panel="What to send")
share: Callable[..., Any] = partial(typer.Option, min=0, max=1, rich_help_panel="Faults (probabilities)")
fault: Callable[..., Any] = partial(typer.Option, rich_help_panel="Faults (probabilities)")
_where: Callable[..., Any] = partial(typer.Option, rich_help_panel="Where")

Seed = Annotated[int, sending(min=0, help="Seed; the same seed gives the same stream.")]
Count = Annotated[int | None, sending(min=0, help="Stop after this many good records.")]
Seconds = Annotated[float | None, sending(min=0, help="Stop after this time, in seconds. Default: at Ctrl-C.")]
ReportFile = Annotated[Path | None, sending(help="JSON file for the exact account; refreshed each second.")]
Bootstrap = Annotated[str | None, _where(help="Kafka brokers. Default: the deployment's.")]
Prefix = Annotated[str | None, _where(help="Prefix of all topic names. Default: the deployment's.")]


def deployment(bootstrap: str | None, prefix: str | None, **more: int | None) -> Settings:
    """Return the settings, with the options of the command line instead of the given ones; None: not given."""
    changes = {"bootstrap": bootstrap, "prefix": prefix, **more}
    return msgspec.structs.replace(load_settings(), **{k: v for k, v in changes.items() if v is not None})


def send(
    stream: Stream,
    shape: Shape,
    report: Callable[[dict[str, Any]], ReportT],
    settings: Settings,
    stop: Stop,
    *,
    client: str,
    file: Path | None,
    summary: Callable[[ReportT], str],
) -> None:
    """Send a stream until its end or a signal; the exit code is 1 if a record was not delivered.

    Parameters
    ----------
    report
        Makes the report of the fields that all reports have.
    file
        File for the report; updated each second.
    summary
        Formats the final report.
    """
    clock, health = SystemClock(), BusHealth()
    connection = Connection(settings, clock=clock)
    writer = KafkaStreamWriter(connection, health=health, client=client, patience=PATIENCE)
    if not writer.require_topic(stream.topic, _BROKER_WAIT):
        ERR.print(
            f"[yellow]no Kafka broker answers at {escape(settings.bootstrap)}. The records wait for one; Ctrl-C"
            " gives up. The address comes from --bootstrap, KAFKA_BOOTSTRAP or the settings file."
        )
    with _progress(clock, lambda: not health.connected) as show:

        def each_second(state: ReportT) -> None:
            if file is not None:
                write_json(file, state)
            show(state)

        simulator = StreamSender(
            stream,
            shape,
            report,
            writer,
            clock=clock,
            topic_name=connection.topic(stream.topic),
            each_second=each_second,
            last_error=lambda: health.last_error,
        )
        with on_stop(simulator.stop):
            final = simulator.run(stop)
    ERR.print(summary(final))
    if final.undelivered:
        # The last failure is then that the client gave the records up, which is not the cause.
        why = final.last_error if health.connected else f"no Kafka broker answers at {settings.bootstrap}"
        ERR.print(f"[bold red]undelivered: {final.undelivered:,}[/bold red]  {escape(why)}")
        raise typer.Exit(1)


@contextmanager
def _progress(clock: Clock, is_away: Callable[[], bool]) -> Iterator[Callable[[StreamReport], None]]:
    """Show the state: a live line on a terminal, otherwise a plain one at intervals."""
    last_time, last_sent, last_plain = clock.monotonic(), 0, clock.monotonic()

    def line(report: StreamReport) -> str:
        nonlocal last_time, last_sent
        now = clock.monotonic()
        rate = (report.sent - last_sent) / max(now - last_time, 1e-3)
        last_time, last_sent = now, report.sent
        error = f"no Kafka broker answers: {report.last_error}" if is_away() else report.last_error
        trouble = f"  {escape(error)}" if report.backlog and error else ""
        return f"{report.elapsed:7.1f} s  sent {report.sent:,}, {rate:,.0f}/s  backlog {report.backlog:,}{trouble}"

    if ERR.is_terminal:
        with Live(console=ERR, auto_refresh=False, transient=True) as live:
            yield lambda report: live.update(line(report), refresh=True)
        return

    def plain(report: StreamReport) -> None:
        nonlocal last_plain
        if clock.monotonic() - last_plain >= _PLAIN_INTERVAL:
            last_plain = clock.monotonic()
            ERR.print(line(report))

    yield plain

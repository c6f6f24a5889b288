"""`sdp-facade archive` and `history`: the worker that keeps records as files, what verifies and what reads them."""

import csv
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from facade.bus.kafka.bus import KafkaBus
from facade.clock import SystemClock, utc_text
from facade.console import ERR, OUT, table, wide
from facade.durations import parse_duration
from facade.errors import ConfigError
from facade.printable import printable
from facade.runtime.worker_process import Site, Slot, run_worker

try:
    from facade.flows.archive.files import verify as verify_store
    from facade.flows.archive.history import SILENT_US, HistoryArchive, Point, Series
    from facade.flows.archive.stores import open_store
    from facade.flows.archive.worker import ArchiveLimits, ArchiveWorker
except ImportError as error:
    raise ConfigError("archives need pyarrow: pip install 'sdp-tango-facade[batches]'") from error

ArchiveLocation = Annotated[
    str, typer.Argument(metavar="FOLDER", help="Folder of the archive, or its URL in an object store.")
]


def run(
    place: ArchiveLocation,
    only: Annotated[list[str] | None, typer.Option(metavar="TOPIC", help="Write this topic. Default: all.")] = None,
    every: Annotated[str, typer.Option(help="Longest time until a record is in a file, such as 90s or 10m.")] = "5m",
    slot: Slot = "0",
) -> None:
    """Write topics to an archive; each record is in one file, whatever is killed.

    Give each topic to one worker.

    Example: sdp-facade archive run /data/archive --only alerts --only commands
    """
    limits = ArchiveLimits(age=parse_duration(every, "--every"))

    def make(site: Site) -> ArchiveWorker:
        if odd := [one for one in only or () if one not in site.icd.topics]:
            raise ConfigError(f"--only: expected some of {', '.join(site.icd.topics)}, got {odd[0]!r:.100}")
        return ArchiveWorker(
            KafkaBus(site.connection, client=f"archive-{site.slot}"),
            open_store(place),
            site.icd,
            [*dict.fromkeys(only or site.icd.topics)],
            deployment=site.settings.prefix,
            clock=site.clock,
            limits=limits,
        )

    run_worker("archive", slot, make)


def verify(place: ArchiveLocation) -> None:
    """Read all files of an archive: no gap, no overlap, every byte as it was written. Exit code 1: something is wrong.

    Example: sdp-facade archive verify /data/archive
    """
    reports = [*verify_store(open_store(place))]
    titles = ("topic", "partition", "files", "records", "offsets", "faults")
    rows = [
        (one.topic, f"{one.partition}", f"{one.files}", f"{one.records:,}", one.offsets, f"{len(one.faults)}")
        for one in reports
    ]
    wide().print(table(titles, rows, whole=titles, box=None))
    for note in (note for one in reports for note in one.notes):
        OUT.print(f"note: {note}", markup=False)
    faults = [fault for one in reports for fault in one.faults]
    for fault in faults:
        ERR.print(f"fault: {fault}", markup=False)
    if faults:
        raise typer.Exit(1)


def history(
    place: ArchiveLocation,
    attribute: Annotated[
        str, typer.Argument(metavar="[DEVICE/ATTRIBUTE]", help="Such as mid-sdp/ingest/0001/heapRate.")
    ] = "",
    since: Annotated[str, typer.Option(help="How far back, such as 10m, 1h30m or 2d. Default: 1h.")] = "",
    begin: Annotated[
        str, typer.Option("--from", metavar="TIME", help="First time, by ISO 8601; without a zone it is UTC.")
    ] = "",
    end: Annotated[str, typer.Option("--to", metavar="TIME", help="Time after the last. Default: now.")] = "",
    at: Annotated[str, typer.Option(metavar="TIME", help="Print all attributes as they were at this time.")] = "",
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw to this file: svg, png or pdf.")] = None,
) -> None:
    """Print what an attribute showed, or what all attributes showed at a time, from an archive.

    Examples: sdp-facade history /data/archive mid-sdp/ingest/0001/heapRate --since 1d --plot rate.svg

    sdp-facade history /data/archive --at 2027-01-15T03:12:00Z
    """
    if (
        bool(attribute) == bool(at)
        or (at and (since or begin or end or plot))
        or (since and begin)
        or (as_csv and plot)
    ):
        raise ConfigError(
            "expected an attribute with --since or --from, and at most one of --csv and --plot; or --at alone or with"
            " --csv"
        )
    archive = HistoryArchive(open_store(place))
    if at:
        _print_all(archive.at(_time(at, "--at")), as_csv=as_csv)
        return
    until = _time(end, "--to") if end else round(SystemClock().now() * 1e6)
    first = _time(begin, "--from") if begin else until - round(parse_duration(since or "1h", "--since") * 1e6)
    if first >= until:
        raise ConfigError(f"expected --from before --to, got {utc_text(first)} and {utc_text(until)}")
    series = archive.read(attribute, first, until)
    if plot is not None:
        from facade.flows.archive.plot import draw  # takes a second to load

        draw(plot, attribute, series, first, until)
        ERR.print(f"{plot}: {attribute}, {len(series.points):,} values", markup=False)
    elif as_csv:
        _write_csv(("time", "recorded", "value", "quality", "gap"), (_cells(one) for one in series.points))
    else:
        _print_series(series)
    if series.last + SILENT_US < min(until, archive.extent()[1]):
        ERR.print(f"note: not recorded after {utc_text(series.last)}", markup=False)
    if series.unreadable:
        ERR.print(f"note: {series.unreadable:,} records are no messages of the history", markup=False)


def _time(text: str, option: str) -> int:
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(f"{option}: expected a time such as 2027-01-15T03:12:00Z, got {text!r:.100}") from error
    return round((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1e6)


def _print_series(series: Series) -> None:
    lines = [f"{'time':29}  {'quality':7}  value"]
    for recorded, one in series.points:
        if one.gap:
            since = f"from {utc_text(series.gaps[recorded])} to" if recorded in series.gaps else "before"
            lines.append(f"-- values may be missing {since} {utc_text(recorded)} --")
        lines.append(f"{utc_text(one.time):29}  {one.quality:7}  {_text(one.value)}")
    _echo(lines)


def _print_all(points: dict[str, Point], *, as_csv: bool) -> None:
    if as_csv:
        cells = ((printable(name), *_cells(point)[:-1]) for name, point in points.items())
        _write_csv(("attribute", "time", "recorded", "value", "quality"), cells)
        return
    width = max(map(len, points), default=0)
    lines = [f"{'attribute':{width}}  {'time':29}  {'quality':7}  value"]
    for name, (_, one) in points.items():
        lines.append(f"{name:{width}}  {utc_text(one.time):29}  {one.quality:7}  {_text(one.value)}")
    _echo(lines)


def _cells(point: Point) -> tuple[Any, ...]:
    recorded, one = point
    times = (
        datetime.fromtimestamp(time // 10**6, UTC).replace(microsecond=time % 10**6) for time in (one.time, recorded)
    )
    return (*(time.isoformat() for time in times), printable(_text(one.value)), one.quality, "gap" if one.gap else "")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _echo(lines: Iterable[str]) -> None:
    typer.echo("\n".join(map(printable, lines)))  # a table of rich takes minutes for a day of values


def _write_csv(titles: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(titles)
    writer.writerows(rows)

"""`sdp-facade archive`, `report` and `history`: keep records as files, verify and export them, and read them again."""

import csv
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from facade.kernel.bus.kafka.bus import KafkaBus
from facade.kernel.clock import NEVER, SECOND, Clock, SystemClock, Time, as_duration, utc_seconds, utc_text
from facade.kernel.config import load_settings, without_secrets
from facade.kernel.console import ERR, OUT, SINCE, table, wide
from facade.kernel.errors import ConfigError, writing
from facade.kernel.icd.load import load
from facade.kernel.icd.model import Icd
from facade.kernel.printable import printable
from facade.kernel.runtime.worker_process import Site, run_worker
from facade.sdp.durations import parse_duration, parse_time
from facade.sdp.files import write_whole

try:
    from facade.archive.differences import Comparison, compare
    from facade.archive.files import advice
    from facade.archive.files import verify as verify_store
    from facade.archive.flow import CLASS
    from facade.archive.history import SILENT_US, HistoryArchive, Point, Series, draw, sketch, text_of, unit_in
    from facade.archive.night.page import render
    from facade.archive.night.report import read_night
    from facade.archive.night.span import choose_night, utc
    from facade.archive.post_mortem import MOST, PostMortems
    from facade.archive.reading import newest_time
    from facade.archive.reports import ArchiveAlarms, ArchiveReporter
    from facade.archive.stores import open_store
    from facade.archive.timeline import timeline_archive
    from facade.archive.worker import ArchiveLimits, ArchiveWorker, parse_keep, parse_shard
except ImportError as error:
    raise ConfigError("archives need pyarrow and duckdb: pip install 'sdp-tango-facade[archive]'") from error

ArchiveLocation = Annotated[
    str, typer.Argument(metavar="FOLDER", help="Folder of the archive, or its URL in an object store.")
]

_PATIENCE = 2.0
"""Time between two progress lines of a report [s]."""


def run(
    place: ArchiveLocation,
    only: Annotated[list[str] | None, typer.Option(metavar="TOPIC", help="Write this topic. Default: all.")] = None,
    every: Annotated[
        str, typer.Option(metavar="DURATION", help="Longest time until a record is in a file, such as 90s or 10m.")
    ] = "5m",
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="[TOPIC=]AGE", help="Remove older files: 400d, or ingest.heaps=30d. Default: none."),
    ] = None,
    shard: Annotated[
        str, typer.Option(metavar="K/N", help="Write the partitions of shard K of N, such as 1/2. Default: all.")
    ] = "1/1",
    post_mortems: Annotated[
        str,
        typer.Option(
            metavar="FOLDER",
            help=f"Also keep here, up to {MOST} times, what happened around each CRITICAL alarm.",
        ),
    ] = "",
    slot: Annotated[str, typer.Option(help="Name of this worker's slot, and number of its device.")] = "0",
) -> None:
    """Write topics to an archive; each record is in one file, whatever is killed.

    Give each topic to one worker, or a shard of its partitions to each of several.

    Example: sdp-facade archive run /data/archive --only alerts --only commands
    """
    limits, part = ArchiveLimits(age=parse_duration(every, "--every")), parse_shard(shard)
    paths = [Path(f"{open_store(one)}").resolve() for one in (post_mortems, place) if post_mortems]
    if paths and paths[0].is_relative_to(paths[1]):
        raise ConfigError(f"--post-mortems: expected a folder outside of the archive, got {paths[0]}")

    def make(site: Site) -> ArchiveWorker:
        topics = chosen_topics(only, site.icd)
        name = site.name
        bus = KafkaBus(site.connection, client=name)
        device = site.icd.classes[CLASS].device.format(archive=site.slot)
        reporter: ArchiveReporter | None = None
        if not site.settings.replay:  # the device there shows the worker of the night, whose alarms are replayed
            alerts = site.alerts(f"archive/{site.slot}", bus.writer())
            alarms = ArchiveAlarms(alerts, site.icd.conditions, age=limits.age)
            reporter = ArchiveReporter(device, name, bus.writer().send, alarms, site.clock, age=limits.age)
        store, beside = open_store(place), None
        if post_mortems:
            size = site.settings.rack_size
            beside = PostMortems(store, post_mortems, site.icd, size, site.clock, age=limits.age).step
        return ArchiveWorker(
            bus,
            store,
            site.icd,
            topics,
            deployment=site.settings.prefix,
            clock=site.clock,
            limits=limits,
            keep=parse_keep(keep or (), topics),
            reporter=reporter,
            shard=part,
            beside=beside,
        )

    run_worker("archive-run", slot, make)


def chosen_topics(only: Sequence[str] | None, icd: Icd) -> list[str]:
    """Return the topics that `--only` names, by default all; a `ConfigError` if there is no such topic."""
    if odd := [one for one in only or () if one not in icd.topics]:
        raise ConfigError(f"--only: expected some of {', '.join(icd.topics)}, got {odd[0]!r:.100}")
    return [*dict.fromkeys(only or icd.topics)]


def verify(place: ArchiveLocation) -> None:
    """Read all files of an archive: no gap, no overlap, every byte as it was written. Exit code 1: something is wrong.

    Example: sdp-facade archive verify /data/archive
    """
    reports = [*verify_store(open_store(place))]
    titles = ("topic", "partition", "files", "records", "offsets", "faults")
    rows = [
        (one.topic, f"{one.partition}", f"{len(one.entries)}", f"{one.records:,}", one.offsets, f"{len(one.faults)}")
        for one in reports
    ]
    wide().print(table(titles, rows, whole=titles))
    for note in (note for one in reports for note in one.notes):
        OUT.print(f"note: {note}", markup=False)
    faults = [fault for one in reports for fault in one.faults]
    for fault in faults:
        ERR.print(f"fault: {fault}", markup=False)
    if faults:
        raise typer.Exit(1)


def export(
    place: ArchiveLocation,
    nexus: Annotated[Path, typer.Option(metavar="FILE", help="NeXus file to write.")],
    begin: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="Begin, such as 2027-01-14T18:00; UTC.")
    ] = None,
    end: Annotated[str | None, typer.Option("--to", metavar="TIME", help="End; its own moment is left out.")] = None,
    eb: Annotated[str, typer.Option(metavar="EB", help="The time of this execution block instead.")] = "",
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
) -> None:
    """Write a part of an archive as a NeXus file (HDF5); it is there only when it is whole.

    Example: sdp-facade archive export /data/archive --nexus night.nxs --from 2027-01-14T18:00 --to 2027-01-14T19:00
    """
    try:
        from facade.archive import nexus as files
    except ImportError as error:
        raise ConfigError("NeXus files need h5py: pip install 'sdp-tango-facade[nexus]'") from error
    if bool(eb) == bool(begin or end) or bool(begin) != bool(end):
        raise ConfigError("expected --from and --to, or --eb")
    store = open_store(place)
    times = files.find_time(store, eb) if eb else (parse_time(begin or "", "--from"), parse_time(end or "", "--to"))
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=ERR, transient=True) as progress:
        task = progress.add_task("", total=1.0)

        def report(topic: str, part: float) -> None:
            progress.update(task, description=topic, completed=part)

        with writing(nexus):
            made = files.export(store, load(), nexus, *times, eb=eb, replace=force, progress=report)
    titles = ("topic", "records", "not decoded", "the first of these")
    rows = [
        (topic, f"{one.records:,}" if one.is_exported else "not exported", f"{one.undecoded:,}", one.reason)
        for topic, one in made.items()
    ]
    wide().print(table(titles, rows, whole=titles[:3]))
    _tell_missing(place, (said for one in made.values() for said in one.missing))
    OUT.print(f"{nexus}", markup=False)


def report(
    place: ArchiveLocation,
    night: Annotated[
        str | None,
        typer.Option(metavar="DATE", help="The night from 12:00 UTC of this date to 12:00 UTC of the next one."),
    ] = None,
    begin: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="Or from this time, in UTC, such as 2026-11-21T18:00.")
    ] = None,
    end: Annotated[str | None, typer.Option("--to", metavar="TIME", help="To this time, in UTC.")] = None,
    eb: Annotated[str, typer.Option(metavar="EB", help="Or the time of this execution block.")] = "",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="HTML file. Default: named by its begin, in this folder.")
    ] = None,
) -> None:
    """Write the report of a night: heaps, dead letters, alarms, commands, tables, restarts, missing records.

    It is one HTML page, for a browser, for paper and for a screen reader.

    Example: sdp-facade report /data/archive --night 2026-11-21
    """
    icd, store, clock, rack_size = load(), open_store(place), SystemClock(), load_settings().rack_size
    if not eb:
        span = choose_night(night, begin, end)
    elif night or begin or end:
        raise ConfigError("expected either --eb, or --night, or --from and --to")
    else:
        span = timeline_archive(store, icd, rack_size, clock).night(eb, newest_time(store))
    made = read_night(store, icd, span, rack_size, _progress(clock))
    page = render(made, without_secrets(place), clock.now_us())
    name = eb or (f"night-{night}" if night else f"report-{utc(span.begin_us)[:16].replace(' ', 'T')}")
    file = output or Path(f"{name}.html")
    with writing(file):
        write_whole(file, page.encode())
    _tell_missing(place, (said for one in made.topics.values() for said in one.missing))
    OUT.print(f"{file}", markup=False)


def _tell_missing(place: str, missing: Iterable[str]) -> None:
    """Print the records that are missing in the archive."""
    said = [*missing]
    for one in said:
        ERR.print(f"note: {one}", markup=False)
    if said:
        ERR.print(f"note: {advice(without_secrets(place))}", markup=False)


def _progress(clock: Clock) -> Callable[[str, int, Time], None]:
    """Return a function that prints the progress of a report on standard error, at intervals."""
    told = clock.monotonic()

    def tell(topic: str, records: int, at_us: Time) -> None:
        nonlocal told
        if clock.monotonic() - told >= _PATIENCE:
            told = clock.monotonic()
            ERR.print(f"reads {topic}: {records:,} records, up to {utc(at_us)}", markup=False)

    return tell


def history(
    place: ArchiveLocation,
    attribute: Annotated[
        str, typer.Argument(metavar="[DEVICE/ATTRIBUTE]", help="Such as mid-sdp/ingest/0001/heapRate.")
    ] = "",
    since: Annotated[
        str, typer.Option(metavar="DURATION", help=f"How far back, such as 10m, 12h or 7d. Default: {SINCE}.")
    ] = "",
    begin: Annotated[
        str, typer.Option("--from", metavar="TIME", help="First time, by ISO 8601; without a zone it is UTC.")
    ] = "",
    end: Annotated[str, typer.Option("--to", metavar="TIME", help="Time after the last. Default: now.")] = "",
    at: Annotated[str, typer.Option(metavar="TIME", help="Print all attributes as they were at this time.")] = "",
    against: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="With --at: print what differs from this time, `yesterday`, or the `last-scan`."
        ),
    ] = "",
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw to this file: svg, png or pdf.")] = None,
    terminal: Annotated[bool, typer.Option("--terminal", help="Draw in the terminal.")] = False,
) -> None:
    """Print what an attribute showed, what all showed at a time, or what differs between two times, from an archive.

    Examples: sdp-facade history /data/archive mid-sdp/ingest/0001/heapRate --since 1d --plot rate.svg

    sdp-facade history /data/archive --at 2027-01-15T03:12:00Z --against last-scan
    """
    if (
        bool(attribute) == bool(at)
        or (at and (since or begin or end or plot or terminal))
        or (since and begin)
        or (against and not at)
        or as_csv + bool(plot) + terminal > 1
    ):
        raise ConfigError(
            "expected an attribute with --since or --from, and at most one of --csv, --plot and --terminal; or --at"
            " with at most --against and --csv"
        )
    store = open_store(place)
    if against:
        icd = load()
        timeline = timeline_archive(store, icd, load_settings().rack_size, SystemClock())
        _print_differences(compare(timeline, icd, parse_time(at, "--at"), against), as_csv=as_csv)
        return
    archive = HistoryArchive(store)
    if at:
        _print_all(archive.at(parse_time(at, "--at")), as_csv=as_csv)
        return
    until = parse_time(end, "--to") if end else SystemClock().now_us()
    back = as_duration(parse_duration(since or SINCE, "--since"))
    first = parse_time(begin, "--from") if begin else max(until - back, NEVER)
    if first >= until:
        raise ConfigError(f"expected --from before --to, got {utc_text(first)} and {utc_text(until)}")
    series = archive.read(attribute, first, until)
    if plot is not None:
        draw(plot, attribute, unit_in(load(), attribute), series, first, until)
        ERR.print(f"{plot}: {attribute}, {len(series.points):,} values", markup=False)
    elif terminal:
        width = shutil.get_terminal_size().columns
        typer.echo(sketch(attribute, unit_in(load(), attribute), series, first, until, width))
    elif as_csv:
        _write_csv(("time", "recorded", "value", "quality", "gap"), (_cells(one) for one in series.points))
    else:
        _print_series(series)
    if series.last + SILENT_US < min(until, archive.extent()[1]):
        ERR.print(f"note: not recorded after {utc_seconds(series.last)}", markup=False)
    if series.unreadable:
        ERR.print(f"note: {series.unreadable:,} records are no messages of the history", markup=False)


def _print_series(series: Series) -> None:
    lines = [f"{'time (UTC)':23}  {'quality':7}  value"]
    for recorded, one in series.points:
        if one.gap:
            since = f"from {_moment(series.gaps[recorded])} to" if recorded in series.gaps else "before"
            lines.append(f"-- values may be missing {since} {_moment(recorded)} --")
        lines.append(f"{_moment(one.time)}  {one.quality:7}  {text_of(one.value)}")
    _echo(lines)


def _print_all(points: dict[str, Point], *, as_csv: bool) -> None:
    if as_csv:
        cells = ((printable(name), *_cells(point)[:-1]) for name, point in points.items())
        _write_csv(("attribute", "time", "recorded", "value", "quality"), cells)
        return
    width = max(map(len, points), default=0)
    lines = [f"{'attribute':{width}}  {'time (UTC)':23}  {'quality':7}  value"]
    for name, (_, one) in points.items():
        lines.append(f"{name:{width}}  {_moment(one.time)}  {one.quality:7}  {text_of(one.value)}")
    _echo(lines)


def _print_differences(found: Comparison, *, as_csv: bool) -> None:
    rows = [
        (one.name, *(_said(each) for each in (one.before, one.after)), f"{one.moved:+.2f}", one.unit)
        for one in found.found
    ]
    times = utc_seconds(found.against), utc_seconds(found.time)
    if as_csv:
        _write_csv(("attribute", *times, "moved", "unit"), ([*map(printable, row)] for row in rows))
        return
    width = max((len(row[0]) for row in rows), default=0)
    _echo(
        [
            f"{len(rows):,} of {found.compared:,} attributes differ from {found.what}, the farthest first",
            f"{'moved':>8}  {'attribute':{width}}  {times[0]} -> {times[1]}",
            *(f"{moved:>8}  {name:{width}}  {' -> '.join(shown)} {unit}" for name, *shown, moved, unit in rows),
        ]
    )


def _said(point: Point | None) -> str:
    if point is None:
        return "not recorded"
    quality = "" if point[1].quality == "VALID" else f" ({point[1].quality})"
    return f"{text_of(point[1].value)}{quality}"


def _moment(time_us: Time) -> str:
    """Return the time of a value: there may be many in a second."""
    return utc_text(time_us)[:23].replace("T", " ")


def _cells(point: Point) -> tuple[Any, ...]:
    recorded, one = point
    times = (
        datetime.fromtimestamp(time // SECOND, UTC).replace(microsecond=int(time % SECOND))
        for time in (one.time, recorded)
    )
    return (*(time.isoformat() for time in times), printable(text_of(one.value)), one.quality, "gap" if one.gap else "")


def _echo(lines: Iterable[str]) -> None:
    typer.echo("\n".join(map(printable, lines)))  # a table of rich takes minutes for a day of values


def _write_csv(titles: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(titles)
    writer.writerows(rows)

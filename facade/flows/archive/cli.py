"""`sdp-facade archive`: the worker that keeps records as files, and what verifies the files."""

from typing import Annotated

import typer

from facade.bus.kafka.bus import KafkaBus
from facade.console import ERR, OUT, table, wide
from facade.durations import parse_duration
from facade.errors import ConfigError
from facade.runtime.worker_process import Site, Slot, run_worker

try:
    from facade.flows.archive.alarms import ArchiveAlarms
    from facade.flows.archive.files import verify as verify_store
    from facade.flows.archive.flow import CLASS
    from facade.flows.archive.reports import ArchiveReporter
    from facade.flows.archive.retention import parse_keep
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
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="[TOPIC=]AGE", help="Remove older files: 400d, or ingest.heaps=30d. Default: none."),
    ] = None,
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
        topics = [*dict.fromkeys(only or site.icd.topics)]
        name = f"{site.group}-{site.slot}"
        bus = KafkaBus(site.connection, client=name)
        device = site.icd.classes[CLASS].device.format(archive=site.slot)
        alarms = ArchiveAlarms(site.alerts(f"archive/{site.slot}", bus.writer()), age=limits.age)
        return ArchiveWorker(
            bus,
            open_store(place),
            site.icd,
            topics,
            deployment=site.settings.prefix,
            clock=site.clock,
            limits=limits,
            keep=parse_keep(keep or (), topics),
            reporter=ArchiveReporter(device, name, bus.writer().send, alarms, site.clock, age=limits.age),
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

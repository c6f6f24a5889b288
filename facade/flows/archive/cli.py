"""`sdp-facade archive`: the worker that keeps records as files, and what verifies the files."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from facade.bus.kafka.bus import KafkaBus
from facade.console import ERR, OUT, table, wide
from facade.durations import parse_duration
from facade.errors import ConfigError
from facade.runtime.worker_process import Site, Slot, run_worker

if TYPE_CHECKING:
    from facade.flows.archive.worker import ArchiveWorker

Place = Annotated[str, typer.Argument(metavar="FOLDER", help="Folder of the archive, or its URL in an object store.")]


def run(
    place: Place,
    only: Annotated[list[str] | None, typer.Option(metavar="TOPIC", help="Write this topic. Default: all.")] = None,
    every: Annotated[str, typer.Option(help="Longest time until a record is in a file, such as 90s or 10m.")] = "5m",
    slot: Slot = "0",
) -> None:
    """Write topics to an archive; each record is in one file, whatever is killed.

    Give each topic to one worker.

    Example: sdp-facade archive run /data/archive --only alerts --only commands
    """
    archive = _import("facade.flows.archive.worker")
    stores = _import("facade.flows.archive.stores")
    limits = archive.Limits(age=parse_duration(every, "--every"))

    def make(site: Site) -> "ArchiveWorker":
        worker: ArchiveWorker = archive.ArchiveWorker(
            KafkaBus(site.connection, client=f"archive-{site.slot}"),
            stores.open_store(place),
            site.icd,
            _chosen([*site.icd.topics], only or [*site.icd.topics]),
            deployment=site.settings.prefix,
            clock=site.clock,
            limits=limits,
        )
        return worker

    run_worker("archive", slot, make)


def _chosen(known: list[str], only: list[str]) -> list[str]:
    if odd := [one for one in only if one not in known]:
        raise ConfigError(f"--only: expected some of {', '.join(known)}, got {odd[0]!r:.100}")
    return [topic for topic in known if topic in only]


def verify(place: Place) -> None:
    """Read all files of an archive: no gap, no overlap, every byte as it was written. Exit code 1: something is wrong.

    Example: sdp-facade archive verify /data/archive
    """
    stores, found = _import("facade.flows.archive.stores"), _import("facade.flows.archive.verify")
    reports = [*found.verify(stores.open_store(place))]
    titles = ("topic", "partition", "files", "records", "offsets", "faults")
    rows = [
        (one.topic, str(one.partition), str(one.files), f"{one.records:,}", f"{one.first}-{one.next - 1}",
         str(len(one.faults)))
        for one in reports
    ]  # fmt: skip
    wide().print(table(titles, rows, whole=titles, box=None))
    for one in reports:
        for note in one.notes:
            OUT.print(f"note: {note}", markup=False)
    faults = [fault for one in reports for fault in one.faults]
    for fault in faults:
        ERR.print(f"fault: {fault}", markup=False)
    if faults:
        raise typer.Exit(1)


def _import(name: str) -> Any:
    """Import a module that needs pyarrow, which the help of the commands does not."""
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(f"archives need pyarrow: pip install 'sdp-tango-facade[batches]' ({error})") from error

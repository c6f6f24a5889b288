"""`sdp-facade tables`: the worker that assembles tables, and what sends, lists and fetches them."""

import uuid
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from facade.flows.tables.assembly import AssemblyLimits
from facade.flows.tables.buffers import BufferPool
from facade.flows.tables.content import summarise
from facade.flows.tables.fetch import fetch, find, newest_tables
from facade.flows.tables.messages import CALIBRATION, failed_key, tombstone
from facade.flows.tables.places import parse_roots
from facade.flows.tables.producer import SEGMENT_BYTES, TableProducer
from facade.flows.tables.references import References
from facade.flows.tables.worker import TableWorker
from facade.kernel.bus.kafka.bus import KafkaBus
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.kafka.opening import CONFIRMED_WITHIN
from facade.kernel.bus.kafka.transactional_member import KafkaTransactionalMember
from facade.kernel.clock import SystemClock
from facade.kernel.config import load_settings
from facade.kernel.console import ERR, OUT, table, wide
from facade.kernel.errors import ConfigError, writing
from facade.kernel.runtime.worker_process import FREE, Site, Slot, run_worker
from facade.sdp.messages import Table

_WIDE = 500
_BINARY = "application/octet-stream"


def assemble(slot: Slot = FREE) -> None:
    """Assemble tables from their segments, and announce each complete one once: one worker of the group.

    Several share the partitions.

    Example: sdp-facade tables assemble --slot 1
    """
    run_worker("tables-assemble", slot, _assembler)


def _assembler(site: Site) -> TableWorker:
    name, settings = f"tables-{site.slot}", site.settings
    # Before joining the group: an unclosed member would keep a failed process from ending.
    references = References(parse_roots(settings.table_roots), clock=site.clock)
    bus = KafkaBus(site.connection, client=name)
    return TableWorker(
        KafkaTransactionalMember(
            *(site.connection, CALIBRATION),
            group=site.group,
            slot=site.slot,
            member=name,
            health=bus.health,
            outputs=site.outputs,
        ),
        bus,
        site.icd,
        slot=site.slot,
        group=site.group,
        clock=site.clock,
        summarise=summarise,
        references=references,
        pool=BufferPool(settings.table_memory),
        limits=AssemblyLimits(disk=settings.table_disk, expiry=settings.table_expiry),
    )


def put(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, readable=True, help="The table.")],
    product: Annotated[str, typer.Option(help="Product of which it is a version, such as subarray/01/gains.")],
    kind: Annotated[str, typer.Option(help="Kind of content: gains, bandpass, pointing, sky-model ...")],
    content_type: Annotated[str, typer.Option(help="Media type.")] = _BINARY,
    table: Annotated[
        str | None,
        typer.Option(help="Id of the table; give the same one again to continue after a failure. Default: new."),
    ] = None,
    segment: Annotated[int, typer.Option(min=1, help="Size of a segment, in bytes.")] = SEGMENT_BYTES,
    reference: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Write the table to this URL (file://, s3:// ...), and send only the URL."),
    ] = None,
) -> None:
    """Send a file as a table; prints the table's id.

    Examples: sdp-facade tables put gains.arrow --product subarray/01/gains --kind gains

    sdp-facade tables put sky.fits --product sky --kind sky-model --reference s3://tables/sky-7.fits
    """
    clock, name = SystemClock(), table or uuid.uuid4().hex
    bus = KafkaBus(Connection(load_settings(), clock=clock), client="tables-put")
    size = file.stat().st_size
    ERR.print(f"table {name} of {product}, {size:,} B", markup=False)
    with _progress() as progress:
        steps = ("hashed", "sent") if reference is None else ("sent",)
        tasks = {what: progress.add_task(what, total=size) for what in steps}
        producer = TableProducer(bus.writer(), clock)

        def report(what: str, done: int) -> None:
            progress.update(tasks[what], completed=done)

        try:
            if reference is None:
                producer.send(product, kind, file, content_type, table=name, segment=segment, progress=report)
            else:
                producer.place(reference, product, kind, file, content_type, table=name, progress=report)
        except ValueError as error:
            raise ConfigError(str(error)) from error
    OUT.print(name, markup=False)


def list_tables(
    product: Annotated[str, typer.Argument(help="Only products whose names begin with this. Default: all.")] = "",
) -> None:
    """List the tables that are complete, that are being assembled, or that have failed.

    Example: sdp-facade tables list
    """
    bus = KafkaBus(Connection(load_settings()), client="tables-list")
    titles = ("product", "table", "kind", "state", "size [B]", "received", "reason")
    known = sorted(newest_tables(bus).values(), key=lambda one: (one.product, one.time))
    rows = [_row(one) for one in known if one.product.startswith(product)]
    wide(_WIDE).print(table(titles, rows, whole=titles))


def get(
    name: Annotated[str, typer.Argument(metavar="TABLE|PRODUCT", help="Id of a table, or a product: its newest one.")],
    output: Annotated[Path, typer.Option("--output", "-o", dir_okay=False, help="File for it.")],
) -> None:
    """Fetch a complete table; the file is there only once its checksum was found right.

    Example: sdp-facade tables get subarray/01/gains -o gains.arrow
    """
    settings, clock = load_settings(), SystemClock()
    references = References(parse_roots(settings.table_roots), clock=clock, patience=float("inf"))
    bus = KafkaBus(Connection(settings, clock=clock), client="tables-get")
    table = find(bus, name)
    with _progress() as progress:
        task = progress.add_task("received", total=table.size)
        fetch(
            bus,
            table,
            output,
            clock,
            references=references,
            progress=lambda done: progress.update(task, completed=done),
        )
    ERR.print(f"{table.size:,} B of {table.content_type}, digest {table.sha256}", markup=False)


def remove(
    product: Annotated[str, typer.Argument(help="Product that nobody produces any more, such as subarray/01/gains.")],
) -> None:
    """Remove a product from the devices and the lists, with its alarm `tableLost`; its segments stay on the bus.

    A table that is sent later shows the product again. A table that is being assembled stays.

    Example: sdp-facade tables remove subarray/01/gains
    """
    bus = KafkaBus(Connection(load_settings()), client="tables-remove")
    keys = [key for key in (product, failed_key(product)) if key in (known := newest_tables(bus))]
    if not keys:
        products = ", ".join(sorted({one.product for one in known.values()})) or "none"
        raise ConfigError(f"PRODUCT: expected one that has a table ({products}), got {product!r:.100}")
    for key in keys:
        bus.writer().send_durably(tombstone(key), CONFIRMED_WITHIN)
    OUT.print(f"{product}: removed", markup=False)


def plot(
    name: Annotated[str, typer.Argument(metavar="TABLE|PRODUCT", help="Id of a table, or a product: its newest one.")],
    output: Annotated[Path, typer.Option("--output", "-o", dir_okay=False, help="PNG file.")],
) -> None:
    """Draw amplitude and phase of a solution, antenna by channel, as Tango shows them.

    Example: sdp-facade tables plot subarray/01/gains -o gains.png
    """
    from facade.flows.tables.content import picture  # takes a second to load

    table = find(KafkaBus(Connection(load_settings()), client="tables-plot"), name)
    summary = table.summary if isinstance(table.summary, dict) else {}
    try:
        with writing(output):
            output.write_bytes(picture(summary))
    except ValueError as error:
        raise ConfigError(f"table {table.table} of {table.product}: {error}") from error
    ERR.print(f"{output}: {table.table} of {table.product}", markup=False)


def _progress() -> Progress:
    return Progress(TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), console=ERR)


def _row(table: Table) -> tuple[str, ...]:
    share = f"{100 * table.received / table.size:.0f} %" if table.size else ""
    reason = table.reason if isinstance(table.reason, str) else ""
    return table.product, table.table, table.kind, table.state, f"{table.size:,}", share, reason[:100]

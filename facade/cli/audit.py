"""`sdp-facade audit`: commands, actions on alarms, modes and redriven dead letters with their authors, from the bus."""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Annotated

import typer

from facade.bus import dead_letters, redrive
from facade.bus.kafka.admin import find_range
from facade.bus.kafka.connection import Connection
from facade.bus.kafka.read_range import read_range
from facade.bus.port import Record
from facade.clock import SystemClock
from facade.config import load_settings
from facade.console import OUT, AsJson, table, wide
from facade.durations import parse_duration
from facade.manifest import AuditEntry, load, manifests
from facade.printable import printable

_AWAY = 60.0
"""Largest difference between the clocks of broker and device server [s]."""


def audit(
    since: Annotated[
        str, typer.Option(metavar="DURATION", help="Within the last minutes, hours or days, such as 10m.")
    ] = "1h",
    by: Annotated[str, typer.Option(metavar="TEXT", help="Only where the client or the operator has this text.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="Number of entries to print, the newest ones.")] = 200,
    as_json: AsJson = False,
) -> None:
    """List by time who commanded or was refused, acted on alarms, set modes, and put dead letters back.

    The client is what Tango tells: host and process. The operator is the name that the caller stated, unchecked.

    Example: sdp-facade audit --since 12h --by ann
    """
    clock = SystemClock()
    begin = clock.now() - parse_duration(since, "--since")
    connection = Connection(load_settings(), clock=clock)
    found: list[AuditEntry] = []
    for topic, entry_of in sources().items():
        records = read_range(connection, topic, find_range(connection, topic, since=max(begin - _AWAY, 0.001)))
        found += [entry for record in records if (entry := entry_of(record)) is not None]
    entries = sorted(one for one in found if one.time >= begin and by in f"{one.client}\n{one.operator}")[-limit:]
    if as_json:
        typer.echo(json.dumps([one._asdict() for one in entries], indent=2))
        return
    if not entries:
        OUT.print("nobody did anything in this time" + (" whose name has this text" if by else ""))
        return
    titles = ("time (UTC)", "act", "target", "client", "operator", "said")
    wide().print(table(titles, [[printable(cell) for cell in _row(one)] for one in entries], whole=titles[:3]))


def sources() -> dict[str, Callable[[Record], AuditEntry | None]]:
    """Return the functions that make the entries of records, by topic, of all flows and for dead letters."""
    of_flows = {topic: load(one) for manifest in manifests() for topic, one in manifest.audit.items()}
    return {**of_flows, dead_letters.TOPIC: redriven_entry}


def redriven_entry(record: Record) -> AuditEntry | None:
    """Return the entry of a dead letter that was put back; None: the record is another one."""
    said = {name: value.decode(errors="replace") for name, value in record.headers}
    if said.get(f"{dead_letters.PREFIX}reason") != redrive.REDRIVEN:
        return None
    place = "/".join(said.get(dead_letters.PREFIX + part, "?") for part in ("topic", "partition", "offset"))
    return AuditEntry(record.timestamp_us / 1e6, "redrive", place, said.get(redrive.CLIENT, ""), "")


def _row(one: AuditEntry) -> Iterator[str]:
    yield datetime.fromtimestamp(one.time, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    yield from one[1:]

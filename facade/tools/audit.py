"""`sdp-facade audit`: the acts of people and programs, from the bus, and the right on which each line rests.

A record proves nothing but that its writer had the right to write its topic. So each line names the logins with this
right. The names in a record are its writer's own statement about itself and its callers. A record that is repeated on
its topic is the same act at the same time, and is listed once.
"""

import json
from collections.abc import Callable
from typing import Annotated

import typer

from facade.admin import redrive
from facade.kernel.bus import dead_letters
from facade.kernel.bus.kafka.admin import find_range
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.kafka.read_range import read_range
from facade.kernel.bus.port import Record
from facade.kernel.bus.signatures import SIGNATURE
from facade.kernel.clock import MINUTE, SystemClock, Time, as_duration, as_seconds
from facade.kernel.config import Settings, load_settings
from facade.kernel.console import OUT, SINCE, AsJson, Since, moment, table, wide
from facade.kernel.errors import ConfigError
from facade.kernel.icd.load import load as load_icd
from facade.kernel.icd.topic_model import Topic
from facade.kernel.manifest import AUDIT_KINDS, AuditEntry, load, manifests
from facade.kernel.printable import printable
from facade.sdp.durations import parse_duration

_CERTIFICATE = ("ssl.certificate", "ssl.keystore")
"""Begins the names of settings for a client's certificate, which is a login too."""
_NAMED = 4
"""Most roles that a line names."""
_LONGEST = 17
"""More digits are no time."""
_AWAY = MINUTE
"""Largest difference between the clocks of broker and device server."""


def audit(
    since: Since = SINCE,
    by: Annotated[str, typer.Option(metavar="TEXT", help="Only where the client or the operator has this text.")] = "",
    on: Annotated[
        str, typer.Option(metavar="TEXT", help="Only where the target has this text, such as a device or an alarm.")
    ] = "",
    kind: Annotated[str, typer.Option(metavar="KIND", help=f"Only of this kind: {', '.join(AUDIT_KINDS)}.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="Number of entries to print, the newest ones.")] = 200,
    as_json: AsJson = False,
) -> None:
    """List acts by time: commands, refusals, orders, actions about alarms, modes, comments, and letters put back.

    The client is the caller's host and process, from Tango. The operator is the name that the caller stated, unchecked.
    Each line says which logins could have written it. The operator's page shows the same list.

    Example: sdp-facade audit --since 12h --by ann --kind refusal
    """
    if kind and kind not in AUDIT_KINDS:
        raise ConfigError(f"--kind: expected one of {', '.join(AUDIT_KINDS)}, got {kind!r:.50}")
    begin = SystemClock().now_us() - as_duration(parse_duration(since, "--since"))
    found = audited(begin)
    entries = [one for one in sorted(found) if by in f"{one.client}\n{one.operator}" and on in one.target]
    entries = [one for one in entries if kind in ("", one.kind)][-limit:]
    if as_json:
        typer.echo(
            json.dumps(
                [{**one._asdict(), "time": as_seconds(one.time), "rests_on": found[one]} for one in entries], indent=2
            )
        )
        return
    if not entries:
        OUT.print("nobody did anything in this time" + (" that was asked for" if by or on or kind else ""))
        return
    titles = ("time (UTC)", "act", "target", "client", "operator", "said", "rests on")
    lines = [[printable(cell) for cell in (moment(one.time), *one[1:-1], found[one])] for one in entries]
    console = wide()
    console.print(table(titles, lines, whole=titles[:3], cut={"said": console.width // 4}))


def audited(begin: Time) -> dict[AuditEntry, str]:
    """Return all that people did and were refused since a time, each with the right on which it rests."""
    settings, topics = load_settings(), load_icd().topics
    connection = Connection(settings, clock=SystemClock())
    found: dict[AuditEntry, str] = {}
    for topic, entry_of in sources().items():
        records = read_range(connection, topic, find_range(connection, topic, since=max(begin - _AWAY, Time(1000))))
        for record in records:
            if (entry := entry_of(record)) is not None and entry.time >= begin:
                found.setdefault(entry, rests_on(topics[topic], settings, entry))
    return found


def sources() -> dict[str, Callable[[Record], AuditEntry | None]]:
    """Return the functions that make the entries of records, by topic, of all flows and for dead letters."""
    of_flows = {topic: load(one) for manifest in manifests() for topic, one in manifest.audit.items()}
    return {**of_flows, dead_letters.TOPIC: dead_letter_entry}


def rests_on(topic: Topic, settings: Settings, entry: AuditEntry) -> str:
    """Return the logins that could have written an entry, and the parts of it that are unproven."""
    security = settings.kafka.get("security.protocol", "plaintext").lower()
    if not security.startswith("sasl") and not any(name.startswith(_CERTIFICATE) for name in settings.kafka):
        return "nothing: the brokers ask for no login, so anybody could have written it"
    many, writers = len(topic.writers) > _NAMED, topic.writers
    logins = f"the login of any of {len(writers)} roles" if many else f"the login of {' or '.join(writers)}"
    return f"{logins}; the operator's name is the caller's word" if entry.operator else logins


def dead_letter_entry(record: Record) -> AuditEntry | None:
    """Return the entry of a dead letter that was put back, or has a wrong signature; None: it is another one."""
    said = {name: value.decode(errors="replace") for name, value in record.headers}
    reason = said.get(f"{dead_letters.PREFIX}reason")
    if reason == SIGNATURE:
        act, target = f"{said.get(f'{dead_letters.PREFIX}topic')} refused", (record.key or b"").decode(errors="replace")
        return AuditEntry(
            record.timestamp_us, act, target, "", "", said.get(f"{dead_letters.PREFIX}detail", ""), "refusal"
        )
    if reason != redrive.REDRIVEN:
        return None
    place = "/".join(said.get(dead_letters.PREFIX + part, "?") for part in ("topic", "partition", "offset"))
    stated = said.get(redrive.AT, "")
    is_stated = stated.isascii() and stated.isdecimal() and len(stated) < _LONGEST
    return AuditEntry(
        Time(int(stated)) if is_stated else record.timestamp_us,
        "redrive",
        place,
        said.get(redrive.CLIENT, ""),
        "",
        kind="redrive",
    )

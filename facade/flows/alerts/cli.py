"""`sdp-facade alerts`: the intake of packets, their attachments, and the process that tells people elsewhere."""

import hashlib
import sys
from pathlib import Path
from typing import Annotated

import typer

from facade.flows.alerts.messages import PACKETS
from facade.flows.alerts.notifier import Notifier
from facade.flows.alerts.notify_rules import read_rules
from facade.flows.alerts.packets import Packet, PacketCodec, PacketContent, fetch, intake_worker
from facade.flows.alerts.receivers import poster
from facade.flows.alerts.suppression import suppression_of
from facade.kernel.bus.kafka.bus import KafkaBus
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.clock import SystemClock, utc_seconds
from facade.kernel.config import load_settings
from facade.kernel.console import ERR, table, wide
from facade.kernel.errors import BusError, ConfigError
from facade.kernel.icd.load import load
from facade.kernel.printable import printable
from facade.kernel.runtime.health_issues import ORIGIN
from facade.kernel.runtime.worker import TransactionalWorker
from facade.kernel.runtime.worker_process import FREE, Site, Slot, run_worker

_CATCH_UP = 60.0
"""Longest time to read all alarms [s]."""


def intake(slot: Slot = FREE) -> None:
    """Put the alert of each packet on the topic alerts, exactly-once: one worker of the group.

    One is enough for LSST's nights; several share the partitions.

    Example: sdp-facade alerts intake --slot 1
    """
    run_worker("alerts-intake", slot, _intake)


def _intake(site: Site) -> TransactionalWorker:
    return intake_worker(site.log(PACKETS), site.icd, slot=site.slot, clock=site.clock)


def notify(
    rules: Annotated[Path, typer.Argument(help="File with the rules.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be told now.")] = False,
) -> None:
    """Notify people by mail or web hook about alarms that nobody acknowledges in time: one process of a site.

    Example: sdp-facade alerts notify /etc/sdp-facade/notify.toml --dry-run
    """
    found, settings, icd = read_rules(rules), load_settings(), load()
    if settings.replay:
        raise ConfigError("alerts notify: expected the bus of a running site, got a replay, whose alarms are long over")
    for text in found.unknown_conditions(icd.conditions):
        ERR.print(f"{rules}: {text}", style="yellow", markup=False)
    clock, suppression = SystemClock(), suppression_of(icd, settings.rack_size)
    post = poster(found, settings.prefix, icd.conditions, clock)
    if dry_run:
        bus = KafkaBus(Connection(settings), client="alerts-notify")
        _show(Notifier(bus, found, post, None, suppression=suppression, clock=clock))
        return

    def make(site: Site) -> Notifier:
        bus = KafkaBus(site.connection, client=site.name)
        alerts = site.alerts(f"{ORIGIN}/notify", bus.writer())
        return Notifier(bus, found, post, alerts, suppression=suppression, clock=site.clock)

    run_worker("alerts-notify", "0", make)


def _show(notifier: Notifier) -> None:
    notifier.catch_up(_CATCH_UP)
    titles = ("receiver", "condition", "source", "severity", "waits since", "is told")
    rows = [
        (receiver, one.alarm.condition, printable(one.alarm.source), one.alarm.severity, utc_seconds(one.since), when)
        for receiver, one, when in notifier.preview()
    ]
    notifier.finish()
    wide().print(table(titles, rows, whole=titles))


def attachment(
    packet: Annotated[
        str, typer.Argument(help="Partition and offset of the packet, as the alert says, such as 3/1724.")
    ],
    name: Annotated[str, typer.Argument(help="Name of the attachment, as the alert says.")],
    output: Annotated[Path | None, typer.Option(help="File for the attachment. Default: standard output.")] = None,
    sha256: Annotated[str, typer.Option(help="Checksum from the alert; the content is compared with it.")] = "",
) -> None:
    """Fetch one attachment of an alert from its packet.

    Example: sdp-facade alerts attachment 3/1724 cutoutDifference --output difference.fits
    """
    clock = SystemClock()
    codec = PacketCodec(load())
    bus = KafkaBus(Connection(load_settings(), clock=clock), client="alerts-attachment")
    found = _named(codec, fetch(bus, packet, clock).value, packet, name)
    digest = hashlib.sha256(found.content).hexdigest()
    if sha256 and digest != sha256.lower():
        raise BusError(f"attachment {name!r} of packet {packet}: expected the digest {sha256}, got {digest}")
    if output is not None:
        _write(output, found.content)
    elif not sys.stdout.isatty():
        sys.stdout.buffer.write(found.content)
    said = "the alert's digest" if sha256 else "digest"
    ERR.print(f"{len(found.content):,} B of {found.content_type}, {said} {digest}", markup=False)


def _write(file: Path, content: bytes) -> None:
    try:
        file.write_bytes(content)
    except OSError as error:
        raise ConfigError(f"--output {file}: cannot be written: {error.strerror}") from error


def _named(codec: PacketCodec, value: bytes | None, place: str, name: str) -> PacketContent:
    packet = codec.decode(value)
    if not isinstance(packet, Packet):
        raise BusError(f"packet {place} cannot be read: {packet}")
    for content in packet.contents:
        if content.name == name:
            return content
    there = ", ".join(repr(content.name) for content in packet.contents) or "none"
    raise BusError(f"packet {place}: expected the name of one of its attachments, {there}, got {name!r}")

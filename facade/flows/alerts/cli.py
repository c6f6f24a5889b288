"""`sdp-facade alerts`: the intake of packets, and their attachments."""

import hashlib
import sys
from pathlib import Path
from typing import Annotated

import typer

from facade.flows.alerts.messages import PACKETS
from facade.flows.alerts.packets import Packet, PacketCodec, PacketContent, fetch, intake_worker
from facade.kernel.bus.kafka.bus import KafkaBus
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.clock import SystemClock
from facade.kernel.config import load_settings
from facade.kernel.console import ERR
from facade.kernel.errors import BusError, ConfigError
from facade.kernel.icd.load import load
from facade.kernel.runtime.worker import TransactionalWorker
from facade.kernel.runtime.worker_process import Site, Slot, run_worker


def intake(slot: Slot = "0") -> None:
    """Put the alert of each packet on the topic alerts, exactly-once: one worker of the group.

    One is enough for LSST's nights; several share the partitions.

    Example: sdp-facade alerts intake --slot 1
    """
    run_worker("alerts-intake", slot, _intake)


def _intake(site: Site) -> TransactionalWorker:
    return intake_worker(site.log(PACKETS), site.icd, slot=site.slot, clock=site.clock)


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

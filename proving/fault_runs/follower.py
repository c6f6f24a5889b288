"""The client in the fault run of the alerts: follows them all, writes each one down, and is slow now and then.

It writes so many bytes for each entry, so that none is lost with a process.
"""

import os
import struct
from pathlib import Path

import msgspec

from clients.alert_subscription import AlertSubscription
from facade.clock import Clock
from facade.errors import InfraError
from facade.flows.alerts.follower import Entry
from proving.fault_runs.alert_scenario import digest
from proving.roles import RoleContext

_ENTRY = struct.Struct("<q8s")
_EACH, _SLOW = 20_000, 2_000
"""Of so many entries, so many are taken slowly."""
_TAKES = 0.001
"""How long each of those takes [s]: for longer than the queue has room at the full rate."""
_LOOK = 0.1


class FollowerReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the client says of itself at its end."""

    by_event: int
    by_page: int
    """Entries filled by GetAlertsSince."""
    again: int
    """Events that came though they were known already."""
    overtaken: int
    """Events that came before others that belong before them."""
    overflowed: int
    """Events for which the slow client had no room."""
    unusable: int
    renewed: int
    """How often it has subscribed."""
    silence: float
    """Longest time without an entry, but for its own slowness [s]."""
    lost: list[str]
    """What it was told that nobody can deliver."""


class _Client:
    """Writes down what comes."""

    def __init__(self, path: str, clock: Clock) -> None:
        self._clock = clock
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._ready = 0.0
        """When it was done with the entry before."""
        self.silence = 0.0
        self.lost: list[str] = []

    def on_entry(self, entry: Entry) -> None:
        if self._ready:
            self.silence = max(self.silence, self._clock.monotonic() - self._ready)
        os.write(self._file, packed(entry.sequence, digest(entry.alert or entry.action)))
        if entry.sequence % _EACH < _SLOW:
            self._clock.sleep(_TAKES)
        self._ready = self._clock.monotonic()


def follow_alerts(context: RoleContext, *, device: str, journal: str) -> FollowerReport:
    """Follow until called off.

    Raises
    ------
    InfraError
        There was never anything to follow.
    """
    client = _Client(journal, context.clock)
    subscription = AlertSubscription(device, client.on_entry, start=0, on_lost=client.lost.append)
    while not context.called_off:
        context.clock.sleep(_LOOK)
    subscription.close()
    follower = subscription.follower
    if follower is None:
        raise InfraError("the subscription has no place to begin from")
    return FollowerReport(
        by_event=follower.by_event,
        by_page=follower.by_page,
        again=follower.again,
        overtaken=follower.overtaken,
        overflowed=subscription.overflowed,
        unusable=follower.unusable,
        renewed=subscription.renewed,
        silence=client.silence,
        lost=client.lost,
    )


def packed(sequence: int, content: bytes) -> bytes:
    """Return what is written for an entry."""
    return _ENTRY.pack(sequence, content)


def count_entries(path: Path) -> int:
    """Count the entries so far."""
    return path.stat().st_size // _ENTRY.size if path.exists() else 0


def read_entries(path: Path) -> list[tuple[int, bytes]]:
    """Return sequence number and digest of all entries, in the order in which they came."""
    content = path.read_bytes() if path.exists() else b""
    return list(_ENTRY.iter_unpack(content[: len(content) // _ENTRY.size * _ENTRY.size]))

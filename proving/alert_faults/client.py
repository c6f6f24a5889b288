"""The client in the fault run: follows all alerts, writes each one down, and is slow now and then.

``python -m proving.alert_faults.client DEVICE JOURNAL RESULT``; it ends when RESULT with the suffix .stop is there.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from clients.alert_subscription import AlertSubscription
from facade.clock import Clock, SystemClock
from facade.flows.alerts.follower import Entry
from proving.alert_faults import journal
from proving.alert_faults.scenario import digest

_EACH, _SLOW = 20_000, 2_000
"""Of so many entries, so many are taken slowly."""
_TAKES = 0.001
"""How long each of those takes [s]: for longer than the queue has room at the full rate."""
_LOOK = 0.1


class Client:
    """Writes down what comes."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._clock = clock
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._ready = 0.0
        """When it was done with the entry before."""
        self.silence = 0.0
        self.lost: list[str] = []

    def on_entry(self, entry: Entry) -> None:
        """Take an entry."""
        if self._ready:
            self.silence = max(self.silence, self._clock.monotonic() - self._ready)
        os.write(self._file, journal.line(entry.sequence, digest(entry.alert or entry.action)))
        if entry.sequence % _EACH < _SLOW:
            self._clock.sleep(_TAKES)
        self._ready = self._clock.monotonic()


def main(arguments: Sequence[str]) -> None:
    """Follow until it is called off."""
    device, path, result = arguments[0], Path(arguments[1]), Path(arguments[2])
    clock = SystemClock()
    client = Client(path, clock)
    subscription = AlertSubscription(device, client.on_entry, start=0, on_lost=client.lost.append)
    while not result.with_suffix(".stop").exists():
        clock.sleep(_LOOK)
    subscription.close()
    follower = subscription.follower
    if follower is None:
        sys.exit("the subscription has no place to begin from")
    report = journal.ClientReport(
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
    result.write_bytes(msgspec.json.encode(report))
    os._exit(0)  # Tango's threads may still call back, which crashes an interpreter that is being taken down


if __name__ == "__main__":
    main(sys.argv[1:])

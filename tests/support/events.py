"""What a subscriber wrote down."""

import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.deployment import Deployment
from tests.support.processes import Running

SCRIPT = Path(__file__).with_name("subscriber.py")


@dataclass(frozen=True, slots=True)
class Event:
    """One event as it came."""

    arrived: float
    kind: str
    device: str
    attribute: str
    value: Any
    quality: str | None
    time: float | None
    error: str | None


class Subscriber:
    """A client process that is subscribed to all attributes of some devices."""

    def __init__(self, deployment: Deployment, devices: Sequence[str], name: str = "subscriber") -> None:
        self._file = deployment.folder / f"{name}.jsonl"
        self.process: Running = deployment.start(name, [sys.executable, str(SCRIPT), str(self._file), *devices])
        self.process.says("subscribed")

    def events(self) -> Iterator[Event]:
        if not self._file.exists():
            return
        for line in self._file.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                yield Event(*json.loads(line))

    def newest(self, device: str, attribute: str, kind: str = "change") -> Event | None:
        """Return the last event of an attribute, errors left out; None as long as none has come."""
        found = self.by_attribute(kind)[device, attribute]
        return found[-1] if found else None

    def value(self, device: str, attribute: str, kind: str = "change") -> Any:
        """Return the value of the last event of an attribute; None as long as none has come."""
        newest = self.newest(device, attribute, kind)
        return newest.value if newest else None

    def by_attribute(self, kind: str = "change") -> dict[tuple[str, str], list[Event]]:
        """Return the events of a kind by device and attribute, errors left out."""
        found: dict[tuple[str, str], list[Event]] = defaultdict(list)
        for event in self.events():
            if event.kind == kind and event.error is None:
                found[event.device, event.attribute].append(event)
        return found

"""What SdpMirror shows: how much is mirrored, how well, and what is not."""

from collections import deque
from collections.abc import Callable, Iterator

from facade.bus.port import BusHealth
from facade.flows.mirror.choice import Choice
from facade.flows.mirror.messages import CONNECTED
from facade.flows.mirror.mirror import Mirror
from facade.flows.mirror.writers import Writer
from facade.icd.model import DeviceClass
from facade.printable import printable
from facade.reading import Value
from facade.runtime.view import NewestView

_RATE_OVER = 10.0
"""[s]"""
_MOST_NAMES = 8
"""That Status gives."""
_LONGEST_TEXT = 500


class MirrorView(NewestView):
    """A view: what the mirror of this device server does."""

    what = "rules"

    def __init__(
        self,
        device: str,
        device_class: DeviceClass,
        mirror: Mirror,
        choice: Choice,
        health: BusHealth,
        *,
        known: Callable[[], bool],
        version: str,
    ) -> None:
        super().__init__(device, device_class, health, known=known, version=version)
        self._mirror, self._choice = mirror, choice
        self._counts: deque[tuple[float, int, int]] = deque()
        """Values and records until a time, oldest first."""
        self._away: list[str] = []
        """Names of what was disconnected at the last look."""
        self._others: list[Writer] = []
        """Mirrors that wrote as well."""

    def _look(self, now: float) -> dict[str, Value]:
        mirror = self._mirror
        away, entries = mirror.disconnected(), list(mirror.entries.values())
        self._away = [entry.name for entry in away]
        self._others = mirror.writers.beside(mirror.own)
        present = [entry for entry in entries if entry.connection == CONNECTED]
        values, records = self._rates(now)
        rules = [f"{name}: {' '.join(rule.patterns)}" for name, rule in sorted(self._choice.rules.items())]
        return {
            "mirrored": len(present),
            "polled": sum(entry.is_pushed is False for entry in present),
            "disconnected": len(away),
            "disconnectedAttributes": _lines(f"{one.name}: {one.newest.error}" for one in away if one.newest),
            "valuesRate": values,
            "recordsRate": records,
            "latency": mirror.latency(),
            "gaps": mirror.gaps,
            "otherMirrors": _lines(one.incarnation for one in self._others),
            "recordsWaiting": mirror.outbox.waiting,
            "recordsFailed": mirror.outbox.failed,
            "rules": _lines(rules),
            "rulesRefused": _lines(f"{one}: {why}" for one, why in sorted(mirror.refused().items())),
        }

    def _judge(self, now: float) -> tuple[str, list[str]]:
        lines = [f"Attributes that are mirrored: {len(self._mirror.entries) - len(self._away)}."]
        if self._away:
            more = f" and {len(self._away) - _MOST_NAMES} more" if len(self._away) > _MOST_NAMES else ""
            lines.append(f"Disconnected: {', '.join(self._away[:_MOST_NAMES])}{more}.")
        if self._others:
            names = ", ".join(one.incarnation or "of an older release" for one in self._others)
            lines.append(f"telescope.model is written by another mirror as well: {names}.")
        return "ALARM" if self._away or self._others else "ON", lines

    def _rates(self, now: float) -> tuple[float, float]:
        """Return values and records per second."""
        if self._counts and now < self._counts[-1][0]:
            self._counts.clear()  # the clock was set back
        newest = now, self._mirror.values, self._mirror.outbox.records
        self._counts.append(newest)
        while now - self._counts[0][0] > _RATE_OVER:
            self._counts.popleft()
        since, values, records = self._counts[0]
        took = now - since
        if took <= 0.0:
            return 0.0, 0.0
        return round((newest[1] - values) / took, 1), round((newest[2] - records) / took, 1)


def _lines(texts: "Iterator[str] | list[str]") -> tuple[str, ...]:
    return tuple(printable(text)[:_LONGEST_TEXT] for text in texts)

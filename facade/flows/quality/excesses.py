"""Which metrics are beyond the limits that the ICD gives them, to be reported as alerts.

A metric that has stopped, or has no number, is not beyond its limits: that it is ATTR_INVALID is another matter.
"""

from collections.abc import Iterator, Sequence

from facade.bus.port import BusHealth
from facade.flows.quality.view import QualityView
from facade.icd.topic_model import Limits
from facade.reading import Quality
from facade.runtime.flow import Fault, FaultKey
from facade.severities import ALARM, WARNING

QUALITY_LOW = "qualityLow"
"""Condition of the ICD."""

_BACK = 15.0
"""So long after the bus came back, a metric may still be on its way: producers try again after up to 10 s [s]."""
_SEVERITY_OF_QUALITY = {Quality.WARNING: WARNING, Quality.ALARM: ALARM}
_WORDS = {
    "min_warning": "above {:g}",
    "max_warning": "below {:g}",
    "min_alarm": "above {:g} in any case",
    "max_alarm": "below {:g} in any case",
}


class Excesses:
    """Finds the metrics that are beyond their limits now.

    Parameters
    ----------
    views
        Those that know the metrics.
    """

    def __init__(self, views: Sequence[QualityView], health: BusHealth) -> None:
        self._views = views
        self._prefixes = tuple(f"subarray/{view.subarray:02d}/" for view in views)
        self._health = health
        self._away_at = float("-inf")
        """When the bus was seen to be away the last time."""

    def is_excess(self, key: FaultKey) -> bool:
        """Return whether a condition and source are of the kind that is found here."""
        condition, source = key
        return condition == QUALITY_LOW and source.startswith(self._prefixes)

    def find(self, now: float) -> dict[FaultKey, Fault] | None:
        """Return the excesses by condition and metric; None while no metric can come, and a little longer."""
        if not self._health.connected:
            self._away_at = now
        return None if 0.0 <= now - self._away_at < _BACK else dict(self._find())

    def _find(self) -> Iterator[tuple[FaultKey, Fault]]:
        for prefix, view in zip(self._prefixes, self._views, strict=True):
            for name, reading, limits in view.beyond():
                text = f"{name}: expected {_in_words(limits)}, got {reading.value}"
                yield (QUALITY_LOW, prefix + name), Fault(_SEVERITY_OF_QUALITY[reading.quality], text)


def _in_words(limits: Limits) -> str:
    given = ((words, getattr(limits, name)) for name, words in _WORDS.items())
    return ", ".join(words.format(limit) for words, limit in given if limit is not None)

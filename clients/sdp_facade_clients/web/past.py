"""Values of attributes from before the start of the page's server, from an archive of the history.

A read may take seconds, and longer from a hanging object store. It blocks one thread of the caller's at a time: the
others get the values of the previous read.
"""

import logging
import math
import threading
from typing import Final

from facade.archive.files import ArchiveError
from facade.archive.history import SILENT_US, HistoryArchive, Series
from facade.kernel.clock import Clock, as_seconds, as_time
from facade.kernel.reading import Quality
from sdp_facade_clients.web.feed import HOUR, Points, Trend

READ_AGAIN: Final = 60.0
"""Time after which the archive may have newer values of an attribute [s]."""
_MOST_KEPT: Final = 200
"""Most cached trends; the one with the oldest read goes."""
_log = logging.getLogger(__name__)


class ArchivedTrends:
    """What scalars showed in the last hours, from an archive; for any thread."""

    def __init__(self, archive: HistoryArchive, clock: Clock) -> None:
        self._archive, self._clock = archive, clock
        self._reading = threading.Lock()
        self._kept: dict[tuple[str, float], tuple[float, Trend]] = {}
        self._said = ""

    def before(self, device: str, attribute: str, time: float, span: float = HOUR) -> Points:
        """Return the values of a scalar within the last `span` [s], before a time [Unix s]."""
        name, now = (f"{device}/{attribute}", span), as_seconds(self._clock.now_us())
        since = now - span
        if time <= since:
            return [], []
        read_at, _ = self._kept.get(name, (-math.inf, None))
        if now - read_at >= READ_AGAIN and self._reading.acquire(blocking=False):
            try:
                self._keep(name, now, self._read(name[0], since, now))
            finally:
                self._reading.release()
        _, trend = self._kept.get(name, (0.0, Trend()))
        times, values = trend.points(since)
        pairs = [pair for pair in zip(times, values, strict=True) if pair[0] < time]
        return [at for at, _ in pairs], [value for _, value in pairs]

    def _keep(self, name: tuple[str, float], now: float, trend: Trend) -> None:
        kept = {one: found for one, found in self._kept.items() if one != name} | {name: (now, trend)}
        self._kept = dict([*kept.items()][-_MOST_KEPT:])

    def _read(self, name: str, since: float, now: float) -> Trend:
        try:
            found = self._archive.find(name, as_time(since), as_time(now))
        except (ArchiveError, OSError) as error:
            if self._said != str(error):
                self._said = str(error)
                _log.warning("trends begin without the archive: %s", error)
            return Trend()
        return _trend(found, now - since)


def _trend(found: Series, span: float) -> Trend:
    """Return the numbers of a series, with a gap where values may be missing."""
    trend = Trend(span=span)
    for at, one in found.points:
        if at in found.gaps:
            trend.add(as_seconds(found.gaps[at]), math.nan)
        is_valid = one.quality != Quality.INVALID.value
        trend.add(as_seconds(at), float(one.value) if is_valid and isinstance(one.value, int | float) else math.nan)
    if found.points:
        trend.add(as_seconds(found.last + SILENT_US), math.nan)
    return trend

"""How often alarms speak: chattering and floods are shown to operators, and nothing is dropped for them.

Both limits are those that ISA-18.2 (2016, clause 16) gives as a rule of thumb: an alarm chatters that comes three
times or more in a minute, and more than ten new alarms in ten minutes are more than one operator can look after.
"""

from collections import deque

from facade.flows.alerts.messages import AlarmKey

CHATTER, CHATTER_US = 3, 60_000_000
FLOOD, FLOOD_US = 10, 600_000_000
_RATE_US = 10_000_000
"""The rate is the mean over so long [us]."""
_BUCKET_US = 1_000_000


class Statistics:
    """Counts new occurrences of alarms, and alerts, by the broker's clock."""

    def __init__(self) -> None:
        self._occurrences: dict[AlarmKey, deque[int]] = {}
        self._newest: deque[int] = deque(maxlen=FLOOD + 1)
        self._alerts: deque[list[int]] = deque()
        """Second and alerts in it."""

    def alert(self, at_us: int) -> None:
        """Count an alert."""
        second = at_us // _BUCKET_US
        if self._alerts and self._alerts[-1][0] >= second:
            self._alerts[-1][1] += 1
        else:
            self._alerts.append([second, 1])

    def occurrence(self, key: AlarmKey, at_us: int) -> None:
        """Count a new occurrence of an alarm."""
        self._newest.append(at_us)
        self._occurrences.setdefault(key, deque(maxlen=CHATTER)).append(at_us)

    def rate(self, now_us: int) -> float:
        """Return the alerts per second over the last ten seconds [1/s]."""
        oldest = (now_us - _RATE_US) // _BUCKET_US
        while self._alerts and self._alerts[0][0] <= oldest:
            self._alerts.popleft()
        return sum(count for _, count in self._alerts) / (_RATE_US / 1e6)

    def chattering(self, now_us: int) -> list[AlarmKey]:
        """Return the alarms that came three times or more in the last minute."""
        past = [key for key, times in self._occurrences.items() if times[-1] <= now_us - CHATTER_US]
        for key in past:
            del self._occurrences[key]
        return [
            key for key, times in self._occurrences.items() if len(times) == CHATTER and times[0] > now_us - CHATTER_US
        ]

    def flood(self, now_us: int) -> bool:
        """Return whether more than ten alarms were new in the last ten minutes."""
        return len(self._newest) > FLOOD and self._newest[0] > now_us - FLOOD_US

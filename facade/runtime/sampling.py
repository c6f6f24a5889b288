"""When an attribute may speak.

The rule is KATCP's ``differential-rate`` strategy with its trailing edge (KATCP guidelines 5.0,
section on sensor sampling):

* a change of quality is sent at once, whatever the other filters say;
* otherwise two events are at least `shortest` apart;
* a value inside the deadband of the last one sent is held back;
* what was held back is not forgotten: when the hold-off ends the newest value is sent if it is
  outside the deadband, and after `longest` it is sent in any case.
"""

import math

from facade.icd.model import Sampling
from facade.reading import Reading


class Sampler:
    """Decides for one attribute which readings become events."""

    __slots__ = ("_held", "_rule", "_sent", "_sent_at")

    def __init__(self, rule: Sampling) -> None:
        self._rule = rule
        self._sent: Reading | None = None
        self._sent_at = 0.0
        self._held: Reading | None = None

    def offer(self, reading: Reading, now: float) -> Reading | None:
        """Take a new reading; give the one to send now, if any.

        Parameters
        ----------
        now
            Monotonic time [s].
        """
        if self._sent is None or reading.quality is not self._sent.quality:
            return self._send(reading, now)
        self._held = reading
        return self.due(now)

    def due(self, now: float) -> Reading | None:
        """Return the reading whose hold-off has ended, if any."""
        held, sent = self._held, self._sent
        if held is None or sent is None:
            return None
        gap = now - self._sent_at
        if gap < self._rule.shortest:
            return None
        if gap >= self._rule.longest or self._outside_deadband(held, sent):
            return self._send(held, now)
        return None

    def due_at(self) -> float:
        """Return the time at which what is held back is to be looked at again [s]; infinite if nothing is."""
        held, sent = self._held, self._sent
        if held is None or sent is None:
            return math.inf
        return self._sent_at + (self._rule.shortest if self._outside_deadband(held, sent) else self._rule.longest)

    def _send(self, reading: Reading, now: float) -> Reading:
        self._sent, self._sent_at, self._held = reading, now, None
        return reading

    def _outside_deadband(self, new: Reading, old: Reading) -> bool:
        a, b = new.value, old.value
        if isinstance(a, str | tuple | bool) or isinstance(b, str | tuple | bool):
            return a != b
        return abs(a - b) > max(self._rule.absolute, self._rule.relative * abs(b))

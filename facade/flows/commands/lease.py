"""The lease that allows one of several device servers of the same name to command, by the heartbeats on the log.

Every server writes heartbeats to one partition, where only device servers may write, and reads them all. So all judge
by the same sequence. The holder keeps
the lease while its heartbeats follow each other within the term, by the broker's clock; otherwise the next heartbeat of
any server takes it. A server trusts its own lease only for the term after *sending* a heartbeat that it has read back:
a suspended server refuses before another one can have taken over.
"""

from facade.flows.commands.messages import HeartbeatMessage
from facade.kernel.clock import NEVER, NOTHING, Time, as_duration, as_seconds
from facade.kernel.recent import Bounded

TERM = 2.5
"""How long a heartbeat is good for [s]."""
INTERVAL = 0.5
"""Time between two heartbeats of a device server [s]."""


class Lease:
    """The lease of one component, from the view of one incarnation."""

    def __init__(self, component: str, incarnation: str, *, term: float = TERM) -> None:
        self._component = component
        self._incarnation = incarnation
        self._term = term
        self._renewed_us = NEVER
        self._sent: Bounded[Time, float] = Bounded(100)  # later ones prove nothing
        self._good_until = self._held_since = float("-inf")
        self._released = False
        self.holder: str | None = None
        """Incarnation that may command; None: none."""

    def sent(self, heartbeat: HeartbeatMessage, monotonic: float) -> None:
        """Note that an own heartbeat was passed to the bus at a monotonic time [s]."""
        self._sent[heartbeat.time] = monotonic

    def fold(self, heartbeat: HeartbeatMessage, appended_us: Time) -> None:
        """Process a heartbeat from the log, with the broker's timestamp."""
        if heartbeat.role != "server" or heartbeat.component != self._component:
            return
        # The broker's clock may have been set back, or another broker's may be behind.
        lapsed = abs(appended_us - self._renewed_us) > as_duration(self._term)
        if self.holder is None or self.holder == heartbeat.incarnation or lapsed:
            self.holder = None if heartbeat.stopping else heartbeat.incarnation
            self._renewed_us = appended_us
        sent = self._sent.pop(heartbeat.time, None) if heartbeat.incarnation == self._incarnation else None
        if self.holder == self._incarnation and sent is not None and not self._released:
            if sent > self._good_until:
                self._held_since = sent
            self._good_until = sent + self._term
        elif self.holder != self._incarnation:
            self._good_until = float("-inf")
        may_command = self._good_until > float("-inf")
        assert not may_command or self.holder == self._incarnation, f"{self._incarnation} and {self.holder} may command"
        assert not (may_command and self._released), f"{self._incarnation} may command again after its end"

    @property
    def is_another_s(self) -> bool:
        """Return whether another incarnation holds the lease, or held it last."""
        return self.holder not in (None, self._incarnation)

    def release(self) -> None:
        """Command no more, from now on: another server may hold the lease as soon as it hears of it."""
        self._released, self._good_until = True, float("-inf")

    def held(self, monotonic: float) -> bool:
        """Return whether this incarnation may command now."""
        return monotonic < self._good_until

    def held_for(self, monotonic: float) -> float:
        """Return the time for which this incarnation has held the lease without a gap [s]; 0: it does not."""
        return monotonic - self._held_since if self.held(monotonic) else 0.0

    def trouble(self, monotonic: float) -> str:
        """Return the reason why this incarnation may not command; empty: it may."""
        if self.held(monotonic):
            return ""
        if self._released:
            return "this device server is about to end"
        if self.holder is None or self.holder == self._incarnation:
            return (
                f"this device server's heartbeats do not come back from the bus within {self._term:g} s, so it cannot"
                " know whether another one serves the same devices"
            )
        return f"another device server of the name {self._component} is alive (incarnation {self.holder})"

    def why_not_held(self, monotonic: float, now: Time) -> str:
        """Return the reason why this incarnation may not command, with the remedy; empty: it may.

        Parameters
        ----------
        now
            Wall-clock time.
        """
        trouble = self.trouble(monotonic)
        if not trouble or not self.is_another_s:
            return trouble and f"{trouble}; try again, and look at the broker"
        age = as_seconds(max(now - self._renewed_us, NOTHING))
        return (
            f"{trouble}; it gave a sign of life {age:.1f} s ago: stop it or, if it was killed, try again once it has"
            f" been silent for {self._term:g} s"
        )

"""A standby of a device server: when it is its turn, and when the one that served must end.

Theory of operation
-------------------
Processes that may serve the same devices are all started as standbys. Each gives signs of life under the name of the
server with `SUFFIX`, and reads those of the server. It is its turn when the server says goodbye, or when the log shows
that it is silent: the standby's own signs of life come back, and those of the server do not. So a broker that is away
gives nobody a turn. Of several standbys the one that began first has the turn.

A server that was silent and goes on, as its host stood still, reads a sign of life of its successor, and ends. Until
then it commands nothing: it has no lease (`facade.flows.commands.lease`). A successor is an incarnation that began
later. The order of the signs of life does not tell: those of a server that goes on come after its successor's, too.
"""

from collections.abc import Callable

from facade.runtime.heartbeats import SILENT, HeartbeatMessage, began

SUFFIX = "-standby"
INTERVAL = 0.25
"""Time between two signs of life of a standby [s]: so often it sees that the bus is there."""
_MISSED = 3.0
"""Signs of life that a server may miss before it counts as silent."""


class Succession:
    """Tells a standby when it is its turn, by the signs of life on the log.

    Parameters
    ----------
    component
        Name of the server.
    incarnation
        Of this standby.
    """

    def __init__(self, component: str, incarnation: str) -> None:
        self._component, self._incarnation = component, incarnation
        self._now = self._since = self._newest = 0.0
        self._server: tuple[HeartbeatMessage, float] | None = None
        self._standbys: dict[str, float] = {}
        """Time of the last sign of life of each, by the broker's clock [Unix s]."""

    def fold(self, heartbeat: HeartbeatMessage, appended_us: int) -> None:
        """Take a sign of life from the log, with the broker's time stamp [Unix us]."""
        at = appended_us / 1e6
        if heartbeat.component == self._component:
            self._newest = max(self._newest, began(heartbeat.incarnation))
            # The goodbye of a server that was replaced says nothing of its successor.
            if not heartbeat.stopping or began(heartbeat.incarnation) == self._newest:
                self._server = heartbeat, at
        elif heartbeat.component == self._component + SUFFIX:
            self._standbys[heartbeat.incarnation] = 0.0 if heartbeat.stopping else at
            if heartbeat.incarnation == self._incarnation:
                self._now, self._since = at, self._since or at

    def silence(self) -> float:
        """Return for how long the bus has been there without a sign of life of the server [s]; goodbye: for ever."""
        if not self._since:
            return 0.0
        if self._server is None:
            return self._now - self._since
        heartbeat, at = self._server
        return float("inf") if heartbeat.stopping else self._now - at

    def is_due(self, answers: Callable[[], bool]) -> bool:
        """Return whether it is the turn of this standby.

        `answers`: whether the server answers clients; asked only when it has missed some signs of life.
        """
        within = SILENT if self._server is None else min(_MISSED * self._server[0].interval, SILENT)
        silence = self.silence()
        if silence <= within or not self._is_first():
            return False
        return silence > SILENT or not answers()

    def _is_first(self) -> bool:
        alive = [one for one, at in self._standbys.items() if self._now - at <= SILENT]
        return min(alive, default="") == self._incarnation


class Replacement:
    """Tells a server that another process has taken its place: one that began later, and is heard after the server."""

    def __init__(self, component: str, incarnation: str, act: Callable[[str], None]) -> None:
        self._component, self._incarnation, self._act = component, incarnation, act
        self._is_heard = False
        """Whether an own sign of life came back: before it stand those of servers that have ended."""

    def fold(self, heartbeat: HeartbeatMessage, appended_us: int) -> None:
        """Take a sign of life from the log."""
        if heartbeat.component != self._component:
            return
        if heartbeat.incarnation == self._incarnation:
            self._is_heard = True
        elif self._is_heard and began(heartbeat.incarnation) > began(self._incarnation):
            self._act(heartbeat.incarnation)

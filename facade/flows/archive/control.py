"""Orders to the replay of a deployment, from its Tango device."""

from facade.clock import Clock
from facade.durations import parse_time
from facade.errors import CommandRefused, ConfigError
from facade.messages import ReplayOrderAction
from facade.runtime.composition import Server
from facade.runtime.replay import ReplayClock, make_order, replay_record, why_not

LONGEST_STEP = 86_400
"""[s]"""
_NOT_ALLOWED, _FAILED = "API_CommandNotAllowed", "API_CommandFailed"


class ReplayControl:
    """Gives orders to the replay."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._clock: Clock = server.clock

    def give(self, command: str, *, seconds: int = 1, time: str | None = None) -> str:
        """Write an order to the bus, and return its id; `CommandRefused` if no replay can do it."""
        where, clock = f"SdpArchive.{command}", self._clock
        if not 0 < seconds <= LONGEST_STEP:
            raise CommandRefused(_FAILED, f"expected 1 to {LONGEST_STEP} s, got {seconds}", where)
        try:
            to = 0 if time is None else parse_time(time, "argument")
        except ConfigError as error:
            raise CommandRefused(_FAILED, str(error), where) from error
        if not isinstance(clock, ReplayClock):
            why = "expected a deployment that shows a replay, got one whose setting replay is not true"
            raise CommandRefused(_NOT_ALLOWED, why, where)
        actions: dict[str, ReplayOrderAction] = {"Pause": "PAUSE", "Resume": "RESUME", "Step": "STEP", "Seek": "SEEK"}
        today, origin = clock.today.now(), self._server.instance
        order = make_order(actions[command], origin, now=today, seconds=float(seconds), to=to)
        if why := why_not(order, clock.position):
            raise CommandRefused(_NOT_ALLOWED, why, where)
        self._server.send_durably(replay_record(order))
        return order.id

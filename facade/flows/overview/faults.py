"""What is wrong with SDP as the bus shows it, one fault for each source, to be told as alerts."""

from collections.abc import Callable, Iterator, Mapping

from facade.flows.overview.accounts import StreamTotals
from facade.flows.overview.health import Condition
from facade.runtime.flow import Fault, FaultKey

_ORIGIN = "sdp-facade"
_NEW_FOR = 60.0
"""How long after the last dead letter of a stream they count as new [s]."""


_CONDITIONS = frozenset(
    {"workerGone", "streamSilent", "controllerSilent", "streamUnbalanced", "streamLagging", "deadLetters"}
)


def is_fault(key: FaultKey) -> bool:
    """Return whether a condition and source are of the kind that is found here."""
    condition, source = key
    return condition in _CONDITIONS and source.partition("/")[0] in (_ORIGIN, "ingest")


class Faults:
    """Finds what is wrong now.

    Parameters
    ----------
    condition
        Gives what is known of SDP; None while nothing is.
    streams
        Gives the accounts of all streams.
    """

    def __init__(
        self, condition: Callable[[], Condition | None], streams: Callable[[], Mapping[str, StreamTotals]]
    ) -> None:
        self._condition = condition
        self._streams = streams
        self._dead: dict[str, tuple[int, float]] = {}
        """Dead letters of each stream, and since when [Unix s]."""

    def find(self, now: float) -> dict[FaultKey, Fault] | None:
        """Return what is wrong by condition and source; None while nothing can be known."""
        condition = self._condition()
        if condition is None or not condition.connected:
            return None
        return dict([*_of(condition), *self._dead_letters(now)])

    def _dead_letters(self, now: float) -> Iterator[tuple[FaultKey, Fault]]:
        for name, stream in self._streams().items():
            count = stream.account.dead_lettered
            before, since = self._dead.get(name, (count, -_NEW_FOR))
            self._dead[name] = (count, now if count > before else since)
            if now - self._dead[name][1] < _NEW_FOR:
                text = f"{count} records of {name} could not be used so far; the last one: {stream.account.last_error}"
                yield ("deadLetters", f"{_ORIGIN}/{name}"), Fault("WARNING", text)


def _of(condition: Condition) -> Iterator[tuple[FaultKey, Fault]]:
    if not condition.workers_alive:
        yield ("workerGone", _ORIGIN), Fault("CRITICAL", "no aggregate worker alive: expected at least one")
    if condition.reporting:  # when no node speaks, none is observing
        for node in sorted(condition.expected - condition.reporting):
            text = f"ingest node {node} says nothing while {len(condition.reporting)} others do"
            yield ("streamSilent", f"ingest/{node:04d}"), Fault("ALARM", text)
    if condition.silent_controllers:
        yield ("controllerSilent", _ORIGIN), Fault("CRITICAL", "; ".join(condition.silent_controllers))
    for name in condition.unbalanced:
        text = f"the account of {name} does not balance: records were lost or counted twice"
        yield ("streamUnbalanced", f"{_ORIGIN}/{name}"), Fault("CRITICAL", text)
    for name, lag in condition.lagging:
        yield ("streamLagging", f"{_ORIGIN}/{name}"), Fault("WARNING", f"readers of {name} are {lag} records behind")

"""healthState and its reasons: pure rules over what the control instance knows."""

from dataclasses import dataclass

OK, DEGRADED, FAILED, UNKNOWN = "OK", "DEGRADED", "FAILED", "UNKNOWN"


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """What is known about SDP at one moment."""

    connected: bool
    """Whether a broker answers."""
    bus_error: str
    """The newest error of the connection."""
    workers_alive: int
    expected: frozenset[int]
    """Ingest nodes of the deployment."""
    reporting: frozenset[int]
    """Ingest nodes with heaps in the newest window."""
    silent_controllers: tuple[str, ...]
    """What is to be said of controllers that should not be silent."""
    uncontrolled: tuple[str, ...]
    """Devices that take commands and of which no controller was heard."""
    unbalanced: tuple[str, ...]
    """Streams whose account does not balance."""
    lagging: tuple[tuple[str, int], ...]
    """Streams whose lag passes the warning limit, with the lag [records]."""


def judge_health(condition: Condition) -> tuple[str, tuple[str, ...]]:
    """Return healthState's label and the reasons for it, the gravest first."""
    if not condition.connected:
        return UNKNOWN, (f"no Kafka broker reachable; last error: {condition.bus_error or 'none yet'}",)
    failed, degraded = [], []
    failed += [
        f"account of {name} does not balance: records were lost or counted twice" for name in condition.unbalanced
    ]
    if not condition.workers_alive:
        failed.append("no aggregate worker alive: notifications are kept on the bus but not shown")
    silent = condition.expected - condition.reporting
    if silent:
        degraded.append(f"{len(silent)} of {len(condition.expected)} ingest nodes silent: {_in_words(silent)}")
    degraded += condition.silent_controllers
    degraded += [
        f"no controller of {device} was heard of: nobody executes its commands" for device in condition.uncontrolled
    ]
    degraded += [f"{name} lags by {lag} records" for name, lag in condition.lagging]
    if failed:
        return FAILED, (*failed, *degraded)
    return (DEGRADED, tuple(degraded)) if degraded else (OK, ())


def _in_words(nodes: frozenset[int], most: int = 20) -> str:
    listed = sorted(nodes)
    text = ", ".join(map(str, listed[:most]))
    return f"{text} ..." if len(listed) > most else text

"""Subscribers of a visit: a hundred filters, twenty alerts each, as observatories follow LSST's alerts."""

from collections.abc import Sequence
from functools import partial

import msgspec

from clients.alert_subscription import AlertSubscription
from facade.clock import Clock
from facade.errors import InfraError
from facade.flows.alerts.filter import AlertFilter, Comparison
from facade.flows.alerts.follower import Entry
from facade.flows.alerts.simulator.stream import DETECTED
from proving.bench.hop_roles import ALERTS
from proving.bench.report import Verdict
from proving.deployment import Deployment
from proving.roles import Role, RoleContext

SUBSCRIBERS, EACH, PROCESSES = 100, 20, 5
_BEFORE = 10
"""Alerts of a detector that its subscriber leaves out first; the visit has at least 33 of each."""
_INSTANCE = "alerts"
_LOOK = 0.1


class Subscribed(msgspec.Struct, frozen=True, kw_only=True):
    """What one subscriber was given."""

    source: str
    alerts: list[tuple[int, float, float]]
    """Number of each alert, when the bus took it and when it was given to the client [Unix s]."""
    place: int
    """Number up to which the subscription has given or left out everything."""
    by_page: int
    """Of all alerts, those that came by GetAlertsSince."""
    lost: list[str]


class _Subscriber:
    def __init__(self, device: str, chosen: AlertFilter, clock: Clock) -> None:
        self._source, self._clock = chosen.source, clock
        self._alerts: list[tuple[int, float, float]] = []
        self._lost: list[str] = []
        self.subscription = AlertSubscription(device, self._take, start=0, on_lost=self._lost.append, only=chosen)

    def _take(self, entry: Entry) -> None:
        self._alerts.append((entry.sequence, entry.time, self._clock.now()))

    def end(self) -> Subscribed:
        self.subscription.close()
        follower, place = self.subscription.follower, self.subscription.place
        if follower is None or place is None:
            raise InfraError(f"the subscription of {self._source} has no place")
        return Subscribed(
            source=self._source, alerts=self._alerts, place=place, by_page=follower.by_page, lost=self._lost
        )


def subscribe(context: RoleContext, *, device: str, filters: list[AlertFilter], last: int) -> list[Subscribed]:
    """Host some subscribers until each has passed the last number."""
    filters = msgspec.convert(filters, list[AlertFilter])
    subscribers = [_Subscriber(f"tango://{context.tango_host}/{device}", one, context.clock) for one in filters]
    while not all(one.subscription.renewed for one in subscribers):
        context.clock.sleep(_LOOK)
    context.announce()
    while not context.called_off and any((one.subscription.place or 0) < last for one in subscribers):
        context.clock.sleep(_LOOK)
    return [one.end() for one in subscribers]


def start(deployment: Deployment, last: int) -> list[Role]:
    """Start the device server of the alerts and all subscribers; return their processes."""
    deployment.prune()
    deployment.register()
    deployment.server(_INSTANCE)
    deployment.progress.demand(partial(deployment.answers, _INSTANCE), 60.0, f"the device server {_INSTANCE}")
    filters = [_filter(f"lsst/detector-{number:03d}") for number in range(SUBSCRIBERS)]
    roles = list[Role]()
    for number in range(PROCESSES):
        shared = msgspec.to_builtins(filters[number::PROCESSES])
        task = {"device": ALERTS, "filters": shared, "last": last}
        roles.append(deployment.play("subscribe-alerts", name=f"subscribers-{number}", ends=True, **task))
    for role in roles:
        deployment.await_ready(role, 60.0)
    return roles


def _filter(source: str) -> AlertFilter:
    bounds = (f"values.found > {_BEFORE}", f"values.found <= {_BEFORE + EACH}")
    return AlertFilter(condition=DETECTED, source=source, severity="INFO", fields=tuple(map(Comparison.parse, bounds)))


def judge(found: Sequence[Subscribed], first: float) -> tuple[Verdict, ...]:
    """Say when the last subscriber had all that it wants.

    Parameters
    ----------
    first
        When the bus took the first packet [Unix s].
    """
    right = sum(len(one.alerts) == len({number for number, *_ in one.alerts}) == EACH for one in found)
    given = [(received, received - taken) for one in found for _, taken, received in one.alerts]
    told = [text for one in found for text in one.lost]
    until, behind = (max(times, default=0.0) for times in zip(*given, strict=True)) if given else (first, 0.0)
    by_page = sum(one.by_page for one in found)
    return (
        Verdict(
            what=f"subscribers with a filter that were given their {EACH} alerts, each once",
            bar=f"{SUBSCRIBERS}",
            found=f"{right}, {len(told)} losses told",
            reached=right == SUBSCRIBERS and not told,
        ),
        Verdict(what=f"until the last subscriber has its {EACH}", bar="", found=f"{until - first:.1f} s"),
        Verdict(what="longest from an alert on the bus to its subscriber", bar="", found=f"{behind:.1f} s"),
        Verdict(what="alerts that subscribers asked for, as their events were lost", bar="", found=f"{by_page:,}"),
    )

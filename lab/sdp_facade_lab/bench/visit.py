"""The alerts of a visit of LSST: an intake of 10,000 packets, and a hundred subscribers with filters."""

from collections.abc import Sequence
from functools import partial

import msgspec
from msgspec.json import decode

from facade.flows.alerts.filter import AlertFilter, Comparison
from facade.flows.alerts.follower import FollowedAlert
from facade.flows.alerts.messages import ALERTS as ALERTS_TOPIC
from facade.flows.alerts.messages import PACKETS, Alert
from facade.flows.alerts.simulator.stream import DETECTED
from facade.infra.processes import Process
from facade.kernel.bus.kafka.admin import find_range
from facade.kernel.bus.kafka.read_range import read_range
from facade.kernel.bus.port import Record
from facade.kernel.clock import Clock, as_seconds
from facade.kernel.errors import InfraError
from sdp_facade_clients.alert_subscription import AlertSubscription
from sdp_facade_lab import gauges
from sdp_facade_lab.bench.hops import ALERTS
from sdp_facade_lab.bench.report import BarVerdict, BenchOutcome
from sdp_facade_lab.deployment import Deployment
from sdp_facade_lab.roles import RoleContext, RoleProcess
from sdp_facade_lab.testbed import Testbed

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

    def _take(self, entry: FollowedAlert) -> None:
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


def start(deployment: Deployment, last: int) -> list[RoleProcess]:
    """Start the device server of the alerts and all subscribers; return their processes."""
    deployment.prune()
    deployment.register()
    deployment.server(_INSTANCE)
    deployment.progress.demand(partial(deployment.answers, _INSTANCE), 60.0, f"the device server {_INSTANCE}")
    filters = [_filter(f"lsst/detector-{number:03d}") for number in range(SUBSCRIBERS)]
    roles = list[RoleProcess]()
    for number in range(PROCESSES):
        shared = msgspec.to_builtins(filters[number::PROCESSES])
        task = {"device": ALERTS, "filters": shared, "last": last}
        roles.append(deployment.play(subscribe, name=f"subscribers-{number}", ends=True, **task))
    for role in roles:
        deployment.await_ready(role, 60.0)
    return roles


def _filter(source: str) -> AlertFilter:
    bounds = (f"values.found > {_BEFORE}", f"values.found <= {_BEFORE + EACH}")
    return AlertFilter(condition=DETECTED, source=source, severity="INFO", fields=tuple(map(Comparison.parse, bounds)))


def judge(found: Sequence[Subscribed], first: float) -> tuple[BarVerdict, ...]:
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
        BarVerdict(
            what=f"subscribers with a filter that were given their {EACH} alerts, each once",
            bar=f"{SUBSCRIBERS}",
            found=f"{right}, {len(told)} losses told",
            reached=right == SUBSCRIBERS and not told,
        ),
        BarVerdict(what=f"until the last subscriber has its {EACH}", bar="", found=f"{until - first:.1f} s"),
        BarVerdict(what="longest from an alert on the bus to its subscriber", bar="", found=f"{behind:.1f} s"),
        BarVerdict(what="alerts that subscribers asked for, as their events were lost", bar="", found=f"{by_page:,}"),
    )


VISIT = 10_000
BAR = 10.8
"""DMTN-028's best, with 11 groups and 10 partitions [s]."""
WORKERS = 2
_SETTLE = 5.0
"""Until the group has given out the partitions [s]."""
_NIGHT = ["simulate", "alerts", "--night", "--visits", "1"]


def visit(testbed: Testbed, *, quick: bool) -> BenchOutcome:
    with testbed.deployment("visit") as deployment:
        workers, alerts = _play(deployment)
        peaks = [gauges.peak_resident(worker.pid) for worker in workers]
        packets = _read(deployment, PACKETS)
    first, last = min(r.timestamp_us for r in packets), max(r.timestamp_us for r in alerts)
    seconds = as_seconds(last - first)
    del packets  # 1.4 GB
    followed = _followed(testbed)
    different = len({(a.source, a.sequence) for a in (decode(r.value or b"", type=Alert) for r in alerts)})
    return BenchOutcome(
        name="visit",
        what="alert packets with two images each, sent at once -> their alerts on the bus",
        verdicts=(
            BarVerdict(
                what="until all are taken",
                bar=f"< {BAR:g} s (paper 002, for 11 groups of 10)",
                found=f"{seconds:.1f} s",
                reached=seconds < BAR,
            ),
            BarVerdict(
                what="alerts on the bus, each once",
                bar=f"{VISIT:,}",
                found=f"{len(alerts):,}, {different:,} different",
                reached=len(alerts) == different == VISIT,
            ),
            BarVerdict(what="peak memory of a worker", bar="", found=f"{max(peaks):.0f} MB"),
            *followed,
        ),
    )


def _play(deployment: Deployment) -> tuple[list[Process], list[Record]]:
    """Send one visit while intake workers take it; return the workers, and all alerts."""
    workers = [deployment.launch(f"intake-{slot}", "alerts", "intake", "--slot", slot) for slot in range(WORKERS)]
    deployment.progress.wait(_SETTLE, f"{WORKERS} intake workers start")
    sender = deployment.launch("night", *_NIGHT, ends=True)
    deployment.progress.demand(lambda: not sender.is_alive, 120.0, f"{VISIT:,} packets are sent")
    alerts = _until_all(deployment)
    deployment.processes.check()
    return workers, alerts


def _followed(testbed: Testbed) -> tuple[BarVerdict, ...]:
    with testbed.deployment("visit-followed") as deployment:
        roles = start(deployment, VISIT)
        _play(deployment)
        found = [one for role in roles for one in deployment.result(role, list[Subscribed], 120.0)]
        return judge(found, as_seconds(min(record.timestamp_us for record in _read(deployment, PACKETS))))


def _until_all(deployment: Deployment) -> list[Record]:
    found: list[Record] = []

    def all_there() -> bool:
        found[:] = _read(deployment, ALERTS_TOPIC)
        return len(found) >= VISIT

    deployment.progress.demand(all_there, 120.0, "all alerts")
    return found


def _read(deployment: Deployment, topic: str) -> list[Record]:
    ranges = find_range(deployment.connection, topic)
    return [*read_range(deployment.connection, topic, ranges, within=120.0)]

"""The replicas of the topics: partitions without a leader or with too few copies, and brokers that are away.

Kafka is asked every 10 s, for all topics in one request, by the admin client of the process. A broker is away if it
should have replicas, and neither leads a partition nor is in sync on one: so no list of brokers is needed. The active
controller is not shown, as brokers do not report it to clients: they name any living broker.
"""

from collections import Counter
from collections.abc import Iterator, Mapping

from facade.admin.bus_checks import used_by
from facade.kernel.bus.offsets import TopicShape
from facade.kernel.clock import NEVER, Time, as_duration
from facade.kernel.icd.model import DeviceClass
from facade.kernel.reading import Reading, judge
from facade.kernel.runtime.composition import Server
from facade.kernel.runtime.flow import DeviceReading, FaultKey
from facade.kernel.runtime.health_issues import DEGRADED, FAILED, ORIGIN, HealthIssue, HealthSource

_OFFLINE, _TOO_FEW, _AWAY, _BEHIND = "partitionsOffline", "replicasTooFew", "brokerMissing", "replicasOutOfSync"
_FIGURES = ("brokersMissing", "offlinePartitions", "underReplicatedPartitions")
_MOST_NAMED = 4


class Replicas(HealthSource):
    """Health of the brokers, derived from the replicas of the deployment's topics; also a view of SdpBus."""

    def __init__(self, server: Server, device_class: DeviceClass, devices: tuple[str, ...]) -> None:
        self._limits = {one.name: one.limits for one in device_class.attributes}
        self._devices, self._watch = devices, server.bus.replica_watch()
        self._topics = [*used_by(server.settings, server.icd).topics]
        (self._stale_after,) = {one.stale_after or 0.0 for one in device_class.attributes if one.name in _FIGURES}
        self.conditions: Mapping[str, str] = dict.fromkeys((_OFFLINE, _TOO_FEW, _AWAY, _BEHIND), ORIGIN)
        self.brokers: frozenset[str] = frozenset()
        """The brokers of the last answer, each as host:port."""
        self._issues: list[HealthIssue] = []
        self._answered, self._is_current = NEVER, False

    def issues(self, now: Time) -> Iterator[HealthIssue]:
        """Return the issues of the brokers' last answer, until it is as old as stale figures."""
        self._is_current = now - self._answered <= as_duration(self._stale_after)
        if self._is_current:
            yield from self._issues

    def judges(self, key: FaultKey) -> bool:
        """Return whether the brokers have answered lately; see `facade.kernel.runtime.health_issues.HealthSource`."""
        return self._is_current

    def readings(self, now: Time) -> Iterator[DeviceReading]:
        """Return the figures of SdpBus after an answer of the brokers; without answers they become stale."""
        shapes = self._watch.step(self._topics)
        if not any(shape.replicas for shape in shapes.values()):
            return
        self.brokers = frozenset().union(*(shape.brokers for shape in shapes.values()))
        offline, too_few, behind, missing = _judge(shapes)
        self._answered, self._issues = now, [*self._of(offline, too_few, behind, missing)]
        figures = dict(zip(_FIGURES, (len(missing), offline.total(), behind.total()), strict=True))
        for device in self._devices:
            for name, value in figures.items():
                yield device, name, Reading(value, now, judge(value, self._limits[name]))

    def _of(
        self, offline: Counter[str], too_few: Counter[str], behind: Counter[str], missing: Counter[int]
    ) -> Iterator[HealthIssue]:
        if offline:
            text = f"no broker leads {_partitions(offline)}: nobody can read or write them"
            yield HealthIssue(FAILED, text, (_OFFLINE, ORIGIN), of_bus=True)
        if too_few:
            text = f"too few replicas of {_partitions(too_few)} are in sync: writes are refused"
            yield HealthIssue(FAILED, text, (_TOO_FEW, ORIGIN), of_bus=True)
        for broker, partitions in sorted(missing.items()):
            text = f"broker {broker} is away: it should have replicas of {partitions} partitions"
            yield HealthIssue(DEGRADED, text, (_AWAY, f"{ORIGIN}/broker-{broker}"), of_bus=True)
        if behind and not missing:
            text = f"replicas of {_partitions(behind)} are not in sync, and all brokers are there"
            yield HealthIssue(DEGRADED, text, (_BEHIND, ORIGIN), of_bus=True)


def _judge(
    shapes: Mapping[str, TopicShape],
) -> tuple[Counter[str], Counter[str], Counter[str], Counter[int]]:
    """Return partitions by topic: offline, refusing writes, lacking replicas; and by each missing broker.

    All replicas but one must confirm, as `topics create` sets it.
    """
    offline, too_few, behind, away = Counter[str](), Counter[str](), Counter[str](), Counter[int]()
    alive: set[int] = set()
    for topic, shape in shapes.items():
        for one in shape.replicas:
            away.update(one.all - one.in_sync if one.leader >= 0 else one.all)
            behind[topic] += one.in_sync < one.all
            if one.leader < 0:  # the replicas in sync at last are away, too
                offline[topic] += 1
                continue
            alive |= one.in_sync
            too_few[topic] += len(one.in_sync) < max(1, len(one.all) - 1)
    missing = Counter({broker: count for broker, count in away.items() if broker not in alive})
    return +offline, +too_few, +behind, missing


def _partitions(counts: Counter[str]) -> str:
    """Return a number of partitions, with the topics that have most of them."""
    named = ", ".join(topic for topic, _ in counts.most_common(_MOST_NAMED))
    more = f" and {len(counts) - _MOST_NAMED} more topics" * (len(counts) > _MOST_NAMED)
    return f"{counts.total()} partitions ({named}{more})"

"""The contract of projections, for each flow of a device server that reads a compacted topic.

Only the newest record of a key matters: whether a server reads live, reads again, or reads what compaction has left.
"""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from facade.flows.alerts.messages import Alarm, state_record
from facade.flows.blocks.source import block_record
from facade.flows.mirror.messages import rule_record
from facade.flows.reservations.ledger import reservation_record
from facade.flows.tables.messages import table_record
from facade.kernel.bus.port import Record
from facade.kernel.config import Settings
from facade.kernel.instances import devices_of
from facade.kernel.manifest import manifests
from facade.kernel.outcome import TOMBSTONE, USED, Outcome, RecordRejected, Suppressed
from facade.kernel.runtime import snapshots
from facade.kernel.runtime.flow import Flow
from facade.sdp import device_state
from facade.sdp.device_state import StateMessage
from facade.sdp.messages import AccountTotals, MirrorRule, ProcessingBlock, Reservation, Snapshot, Table
from tests.support.commanding import ICD, DeviceServers
from tests.support.heaps import BASE_US
from tests.support.metrics import metric

INSTANCE = "server"
METRICS = ("flaggedFraction", "flaggedFractionAntenna", "flaggedFractionBaseline", "unknown1", "unknown2")
SHAPES = {"flaggedFractionAntenna": [0.5], "flaggedFractionBaseline": [[0.5]]}
REPORTED = ("obsState", "resources", "receiveAddresses")
OBS_STATES = ("EMPTY", "IDLE", "READY", "SCANNING", "FAULT")
MODES = ("ONLINE", "OFFLINE", "ENGINEERING", "RESERVED", "NOT_FITTED")


def block(key: int, step: int, subarray: int) -> Record:
    state = ("RUNNING", "WAITING", "FAILED", "STARTING", "FINISHED")[step % 5]
    return block_record(
        ProcessingBlock(
            pb_id=f"pb-{key}",
            eb_id=f"eb-{step % 2}",
            subarray=subarray,
            kind="batch",
            state=state,
            sequence=step,
            time=BASE_US + step,
        )
    )


def reservation(key: int, step: int, subarray: int) -> Record:
    state = ("GRANTED", "REQUESTED", "REFUSED", "RELEASED")[step % 4]
    return reservation_record(
        Reservation(
            id=f"a/{key}", kind="receptors", names=[f"SKA{step:03d}"], subarray=subarray, state=state,
            expires=BASE_US + 10**12, sequence=step, time=BASE_US,
        )
    )  # fmt: skip


def quality(key: int, step: int, subarray: int) -> Record:
    name = METRICS[key] if key < len(METRICS) else f"unknown{key}"
    return metric(name, SHAPES.get(name, 0.5), subarray=subarray, time=BASE_US + step)


def table(key: int, step: int, subarray: int) -> Record:
    product = f"subarray/{subarray:02d}/bandpass{key}"
    state = ("COMPLETE", "ASSEMBLING", "FAILED")[key % 3]
    return table_record(
        Table(
            table="t", product=product, kind="gains", content_type="x", state=state, size=1, received=1,
            sha256="0" * 64, sent_at=BASE_US, time=BASE_US + step, partition=1, first_offset=step, last_offset=step,
            summary={"note": "not looked into"},
        )
    )  # fmt: skip


def rule(key: int, step: int, subarray: int) -> Record:
    return rule_record(MirrorRule(rule=f"r{key}", patterns=[f"a/b/c/d{step}"], time=BASE_US, origin="test"))


def report(key: int, step: int, subarray: int) -> Record:
    name = REPORTED[key % len(REPORTED)]
    value = OBS_STATES[step % len(OBS_STATES)] if name == "obsState" else f'{{"step": {step}}}'
    device = f"mid-sdp/subarray/{subarray:02d}"
    return device_state.state_record(
        StateMessage(device=device, attribute=name, value=value, time=BASE_US + step, origin="controller")
    )


def setting(key: int, step: int, subarray: int) -> Record:
    device, value = f"mid-sdp/subarray/{subarray:02d}", MODES[step % len(MODES)]
    message = StateMessage(device=device, attribute="adminMode", value=value, time=BASE_US + step, origin="operator")
    return device_state.state_record(message, device_state.SETTINGS)


def archive_report(key: int, step: int, subarray: int) -> Record:
    name, device = ("writeRate", "errors", "behind")[key % 3], f"mid-sdp/archive/{subarray - 1}"
    message = StateMessage(device=device, attribute=name, value=str(step), time=BASE_US + step, origin="archive")
    return device_state.state_record(message, "archive-reports")


def alarm(key: int, step: int, subarray: int) -> Record:
    state = ("UNACK", "ACKED", "RTNUN", "NORM")[step % 4]
    found = Alarm(
        condition="tableLost", source=f"s/{key}", state=state, severity="ALARM", text="", source_sequence=step,
        source_raised_at=BASE_US + step, through=step,
    )  # fmt: skip
    return state_record(found.key, found)


def snapshot(key: int, step: int, subarray: int) -> Record:
    account = AccountTotals(consumed=step, used=step)
    return snapshots.to_record(
        Snapshot(
            instance=f"SdpFacade-{key}", topic="quality", time=BASE_US + step, offsets={0: step}, rebuild_from={},
            account=account, ledger={}, readings={},
        )
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Case:
    """A topic: its records, by key, step and subarray, and what its flow knows by them."""

    record: Callable[[int, int, int], Record]
    known: Callable[[Any], Any]
    leaves_out: tuple[str, ...] = ()
    """Reasons with which records that are not newer change nothing; none: the last one on the log is the newest."""
    has_tombstones: bool = True
    foreign: int | None = 9
    """A subarray without a device of the server; None: the flow keeps those of all."""
    keys: int = 6


def states_of(flow: Any) -> Any:
    states = getattr(flow, "_states", flow)
    return {key: (one.value, one.time) for key, one in states._told.items() if one.time}


CASES = {
    "processing-blocks": Case(
        record=block,
        known=lambda flow: [
            (dict(+one.counts), dict(one.open), dict(one.failed), one.newest and one.newest.eb_id)
            for one in flow.subarrays.values()
        ],
        leaves_out=("older", "repeated"),
    ),
    "reservations": Case(
        record=reservation,
        known=lambda flow: ({one.id: one for one in flow.all()}, dict(flow._released)),
        leaves_out=("older", "repeated"),
        foreign=None,
    ),
    "quality": Case(
        record=quality,
        known=lambda flow: {
            number: ({name: one.header.time for name, one in found.newest.items()}, {*found.unknown})
            for number, found in flow.measured.items()
        },
    ),
    "tables": Case(
        record=table,
        known=lambda flow: [dict(one) for one in (flow.complete, flow.assembling, flow.failed)],
        leaves_out=("older",),
        foreign=None,
    ),
    "telescope.mirror": Case(record=rule, known=lambda flow: dict(flow.rules), foreign=None),
    "state": Case(record=report, known=states_of, has_tombstones=False, keys=3),
    "settings": Case(record=setting, known=states_of, has_tombstones=False, keys=1),
    "archive-reports": Case(record=archive_report, known=states_of, has_tombstones=False, keys=3),
    "alert-state": Case(
        record=alarm,
        known=lambda flow: (*({key: one.state for key, one in found.items()} for found in (flow.active, flow.alarms)),
                            dict(flow.raised)),
        foreign=None,
    ),
    "snapshots": Case(
        record=snapshot,
        known=lambda flow: {key: one[0] for key, one in flow._newest.items() if key[0] != INSTANCE},
        has_tombstones=False,
        foreign=None,
    ),
}  # fmt: skip
"""By topic; `test_each_projection_of_the_manifests_is_here` finds those that are missing."""
SETTINGS = Settings(archives=1)
WITHOUT_KEYS = ("alert-state", "snapshots", "tables")
"""Topics of the facade itself, whose keys are not compared with the messages."""


def servers() -> dict[str, tuple[str, list[str]]]:
    """Return a device class whose server reads a compacted topic, and its devices, by topic."""
    found: dict[str, tuple[str, list[str]]] = {}
    names = {name for one in manifests() for name in one.device_classes}
    for name in sorted(names, key=lambda name: (name != "SdpSubarray", name in ("SdpMaster", "SdpBus"))):
        devices = [device for some in devices_of(ICD.classes[name], SETTINGS).values() for device in some][:2]
        ((server, _),) = DeviceServers(**{INSTANCE: {name: devices}}).servers
        for flow in server.flows:
            if flow.topic in ICD.topics and ICD.topics[flow.topic].cleanup == "compact":
                found.setdefault(flow.topic, (name, devices))
    return found


SERVERS = servers()


class Life:
    """A device server with the flow of a topic."""

    def __init__(self, topic: str) -> None:
        name, devices = SERVERS[topic]
        self.topic, self.bench = topic, DeviceServers(**{INSTANCE: {name: devices}})

    @property
    def flow(self) -> Flow:
        ((server, _),) = self.bench.servers
        (flow,) = (one for one in server.flows if one.topic == self.topic)
        return flow

    @property
    def known(self) -> Any:
        return CASES[self.topic].known(self.flow)

    def fold(self, *records: Record) -> list[Outcome]:
        return [self.flow.fold(replace(one, timestamp_us=BASE_US), count=True) for one in records]


def known(topic: str, *records: Record) -> Any:
    """Return what a new server knows by some records."""
    life = Life(topic)
    life.fold(*records)
    return life.known


def removal(record: Record) -> Record:
    return replace(record, value=None, headers=())


def params(topics: Iterable[str]) -> list[Any]:
    """Return the topics as parameters; that of the archive is there with it."""
    of_archive = pytest.mark.needs("facade.archive")
    return [pytest.param(one, marks=of_archive) if one == "archive-reports" else one for one in sorted(topics)]


each = pytest.mark.parametrize("topic", params(CASES))


@pytest.mark.needs("facade.archive")
def test_each_projection_of_the_manifests_is_here() -> None:
    assert set(SERVERS) == set(CASES)


@each
def test_the_newest_record_of_a_key_counts(topic: str) -> None:
    case, life = CASES[topic], Life(topic)
    nothing = life.known
    first, second = case.record(0, 1, 1), case.record(0, 2, 1)
    assert life.fold(first, second)[-1] is USED
    assert life.known == known(topic, second) != nothing
    for again, reason in ((second, "repeated"), (first, "older")):
        assert life.fold(again) == [Suppressed(reason) if reason in case.leaves_out else USED]
        assert life.known == known(topic, second if reason in case.leaves_out else again)


@each
def test_a_tombstone_removes_its_key_only(topic: str) -> None:
    case, life = CASES[topic], Life(topic)
    some = [case.record(key, 4, 1) for key in range(case.keys)]
    life.fold(*some)
    for removed in range(case.keys):
        for _ in range(2):  # what is not known is removed without harm
            assert life.fold(removal(some[removed])) == [TOMBSTONE]
        left = some[removed + 1 :] if case.has_tombstones else some
        assert life.known == known(topic, *left)
    assert life.fold(Record(topic=topic, key=b"\xff", value=None)) == [TOMBSTONE]
    assert life.fold(Record(topic=topic, key=None, value=None)) == [TOMBSTONE]
    if case.has_tombstones:
        assert life.fold(case.record(0, 1, 1)) != [Suppressed("older")], "a removed key begins anew"


@pytest.mark.parametrize("topic", params(topic for topic, case in CASES.items() if case.foreign is not None))
def test_what_belongs_to_other_devices_is_left_out(topic: str) -> None:
    case, life = CASES[topic], Life(topic)
    assert case.foreign is not None
    life.fold(case.record(0, 1, 1))
    (outcome,) = life.fold(case.record(0, 2, case.foreign))
    assert isinstance(outcome, Suppressed)
    assert outcome.reason.startswith("other-")
    assert life.known == known(topic, case.record(0, 1, 1))


@each
def test_a_bad_record_is_rejected_and_changes_nothing(topic: str) -> None:
    case = CASES[topic]
    good = case.record(0, 1, 1)
    life = Life(topic)
    life.fold(good)
    for bad in (replace(good, value=b"{"), replace(good, value=b""), replace(good, key=b"another")):
        (outcome,) = life.fold(bad)
        assert isinstance(outcome, RecordRejected) or (bad.value == good.value and topic in WITHOUT_KEYS)
        assert isinstance(outcome, RecordRejected) is (outcome is not USED)
        assert life.known == known(topic, good)


@each
@pytest.mark.parametrize("seed", range(3))
def test_live_read_again_and_compacted_are_the_same(topic: str, seed: int) -> None:
    case, rng, life = CASES[topic], random.Random(seed), Life(topic)
    history: list[Record] = []
    for step in range(1, 60):
        record = case.record(rng.randrange(case.keys), step, 1)
        history += [record] * rng.choice((1, 1, 2))
        if case.has_tombstones and rng.random() < 0.1:
            history.append(removal(case.record(rng.randrange(case.keys), step, 1)))
    for record in history:
        life.bench.broker.append(record)
    life.bench.cycle()
    live = life.known
    life.bench.start()
    assert life.known == live, "read again"
    for partition in life.bench.broker.model.topics[topic].partitions:
        partition.compact()
    life.bench.start()
    assert life.known == live, "compacted"
    dirty = rng.randrange(len(history))
    newest = {one.key: one for one in history}
    assert known(topic, *(one for at, one in enumerate(history) if at >= dirty or newest[one.key] is one)) == live


BOUNDS = {
    "processing-blocks": ("blocks.flow", {"MOST_OPEN": 20, "MOST_BEYOND": 20, "MOST_FAILED": 20, "MOST_ENDED": 20}),
    "reservations": ("reservations.ledger", {"MOST": 20, "MOST_RELEASED": 20}),
    "quality": ("quality.flow", {"_MOST_UNKNOWN": 20}),
}
"""Limits of the flows whose keys their writers choose. The keys of the others are those of the ICD, of the alarms or
tables that another part of the facade bounds, or of rules that people write."""


@pytest.mark.parametrize("topic", BOUNDS)
def test_the_memory_is_bounded(topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, limits = BOUNDS[topic]
    for name, value in limits.items():
        monkeypatch.setattr(f"facade.flows.{module}.{name}", value)
    case, life = CASES[topic], Life(topic)
    for key in range(1000):
        life.fold(case.record(key, key + 1, 1))
    assert entries(life.flow) < 200


def entries(one: Any, depth: int = 4) -> int:
    """Count the elements of the containers of an object."""
    if isinstance(one, dict | list | set):
        some = one.values() if isinstance(one, dict) else one
        return len(one) + sum(entries(part, depth - 1) for part in some if depth)
    if not type(one).__module__.startswith("facade.flows") or not depth:
        return 0
    names = [*getattr(one, "__dict__", ()), *getattr(one, "__slots__", ())]
    return sum(entries(getattr(one, name), depth - 1) for name in names)

"""Device servers show a replay by its own time, as the original showed the night, and command nothing."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from facade.archive.flow import ReplayControl
from facade.archive.replay import Course, plan_replay, play
from facade.archive.stores import FolderStore
from facade.flows.alerts.messages import Alert, alert_record
from facade.flows.alerts.operator_api import OperatorApi
from facade.flows.commands.gateway import Gateway
from facade.flows.telemetry.worker import telemetry_worker
from facade.kernel.bus.memory import MemoryBus as PlainBus
from facade.kernel.bus.memory import MemoryLog
from facade.kernel.bus.port import PartitionColumns, Record
from facade.kernel.clock import Clock, ManualClock
from facade.kernel.config import Settings
from facade.kernel.errors import CommandRefused
from facade.kernel.runtime.composition import Server
from facade.kernel.runtime.replay import ReplayClock, ReplayFollower, decode
from facade.sdp.messages import AlertState, ReplayOrder, ReplayPosition
from facade.sdp.replay import ReplayTopic, make_order, replay_record
from tests.support.archives import ICD, archive
from tests.support.commanding import Sink
from tests.support.heaps import BASE_US, encoded, heap
from tests.support.simulated_bus import MemoryBroker, MemoryBus, MemoryTransactionalLog

HEAPS, SECOND, DAY = "ingest.heaps", 1_000_000, 86_400
NODE, MASTER, SUBARRAY, ALERTS = "mid-sdp/ingest/0000", "mid-sdp/control/0", "mid-sdp/subarray/01", "mid-sdp/alerts/0"
SHOWN = ("heapRate", "latencyMax")


def record(topic: str, key: bytes, value: bytes | None, *, partition: int = 0, at_us: int = BASE_US) -> Record:
    return Record(topic=topic, key=key, value=value, partition=partition, timestamp_us=at_us)


class Stepping(ManualClock):
    """A clock that lets the processes work while somebody waits."""

    step: Callable[[], None] | None = None

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        step, self.step = self.step, None
        if step is not None:
            step()
            self.step = step


class Deployment:
    """A worker, and a device server of a node, of SDP, of a subarray and of the alerts."""

    def __init__(self, now: float, *, replay: bool = False) -> None:
        self.today = Stepping(now)
        self.broker = MemoryBroker(self.today, {name: topic.partitions for name, topic in ICD.topics.items()})
        self.clock: Clock = self.today
        worker_clock: Clock = self.today
        self.follower: ReplayFollower | None = None
        broker_time: Callable[[], int] | None = None
        if replay:
            self.clock, worker_clock = ReplayClock(self.today), ReplayClock(self.today)
            self.follower = ReplayFollower(lambda: MemoryBus(self.broker), worker_clock)

            def broker_time(clock: ReplayClock = worker_clock) -> int:
                return clock.reached_us

        log = MemoryTransactionalLog(self.broker, HEAPS, group="aggregate", broker_time=broker_time)
        self.worker = telemetry_worker(log, ICD, Settings(nodes=2), slot="0", clock=worker_clock)
        self.sink, devices = Sink(), {"SdpIngestNode": [NODE], "SdpMaster": [MASTER]}
        devices |= {"SdpSubarray": [SUBARRAY], "SdpAlerts": [ALERTS], "SdpBus": ["mid-sdp/bus/0"]}
        self.server: Server = Server(
            *(ICD, Settings(nodes=2, replay=replay), devices, self.sink, MemoryBus(self.broker)),
            instance="SdpFacade-all",
            clock=self.clock,
            versions={"versionId": "1"},
        )
        self.reader = self.server.event_loop._open()
        self.today.step = self.step
        self.failed = 0

    def step(self) -> None:
        if self.follower is not None:
            self.follower.step()
        self.worker.step()
        self.server.event_loop.cycle(self.reader)

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds * 20)):
            self.today.sleep(0.05)

    def shown(self) -> list[tuple[str, float, Any, str]]:
        """Return the windows of the node as events told them: time, value and quality, each once."""
        found = [
            (name, reading.time, reading.value, reading.quality.name)
            for device, name, reading in self.sink.pushed
            if device == NODE and name in SHOWN
        ]
        return list(dict.fromkeys(found))

    def status(self, device: str) -> str:
        return str(self.sink.shown[device, "Status"].value)

    # As a replay writes

    def copy(self, columns: PartitionColumns) -> None:
        for record in columns.records():
            self.broker.append(record)

    def poll(self, timeout: float = 0.0) -> None:
        pass

    def flush(self, timeout: float) -> bool:
        return True


SECONDS = 8


@pytest.fixture(scope="module")
def night() -> Deployment:
    """Return a deployment that has shown some seconds of a night, in which a node fell silent and came back."""
    made = Deployment(BASE_US / 1e6)
    for tick in range(SECONDS * 10):
        if not 20 <= tick < 65:
            for node in (0, 1):
                at = round(made.today.now() * 1000) * 1000
                value = encoded(heap(node, tick, at=tick / 10, latency=tick / 1000))[0]
                made.broker.append(record(HEAPS, b"%d" % node, value, partition=node, at_us=at))
        made.run(0.1)
    made.run(3)
    return made


def archived(deployment: Deployment, folder: Path) -> FolderStore:
    copied = MemoryLog({HEAPS: 2, "state": 1})
    for one in deployment.broker.read(HEAPS):
        copied.append(one)
    # The archive has what was there until the night ended.
    end = BASE_US + (SECONDS + 3) * SECOND
    copied.append(record("state", b"k", None, at_us=end))
    archive(copied, store := FolderStore(folder), HEAPS, "state")
    return store


def replayed(store: FolderStore, *, speed: float = 1.0) -> Deployment:
    again = Deployment(BASE_US / 1e6 + DAY, replay=True)
    plan = plan_replay(store, ICD, BASE_US, BASE_US + (SECONDS + 3) * SECOND, prefix="replay.")
    steering = ReplayTopic(MemoryBus(again.broker))
    play(store, plan, again, again.today, speed=speed, report=lambda *_: None, steering=steering)
    again.run(3)
    return again


def test_a_replay_shows_the_windows_and_the_quality_of_the_night(night: Deployment, tmp_path: Path) -> None:
    again = replayed(archived(night, tmp_path))
    rates = [(time, value, quality) for name, time, value, quality in night.shown() if name == "heapRate"]
    assert {quality for _, _, quality in rates} == {"VALID", "INVALID"}, "the silence of the node was shown"
    assert again.shown() == night.shown()


def test_each_device_says_replay_with_the_time(night: Deployment, tmp_path: Path) -> None:
    again = replayed(archived(night, tmp_path), speed=4.0)
    for device in (NODE, MASTER, SUBARRAY, ALERTS):
        first, *own = again.status(device).splitlines()
        assert first == "REPLAY 2027-01-15 08:00:11 UTC at 4x, ended"
        assert own, "what the device says itself is there as well"
    told = [
        reading.value.splitlines()[0]
        for device, name, reading in again.sink.pushed
        if (device, name) == (NODE, "Status")
    ]
    assert told[0] == "REPLAY 2027-01-15 08:00:00 UTC at 4x"
    assert len(set(told)) > 3, "the time goes on"


def test_a_delay_that_had_not_ended_with_the_night_stays_open(tmp_path: Path) -> None:
    original = Deployment(BASE_US / 1e6)
    about: dict[str, Any] = {"source": "mid/dish/1", "severity": "WARNING", "state": "ACTIVE", "raised_at": BASE_US}
    alert = alert_record(Alert(condition="mirrorDisconnected", text="no answer", sequence=1, **about))
    original.broker.append(replace(alert, timestamp_us=BASE_US))
    original.run(3)
    copied = MemoryLog({"alerts": 1, "alert-state": 1})
    for topic in ("alerts", "alert-state"):
        for one in original.broker.read(topic):
            copied.append(one)
    archive(copied, store := FolderStore(tmp_path / "night"), "alerts", "alert-state")

    again = Deployment(BASE_US / 1e6 + DAY, replay=True)
    plan = plan_replay(store, ICD, BASE_US, BASE_US + 3600 * SECOND, prefix="replay.")
    play(store, plan, again, again.today, report=lambda *_: None, steering=ReplayTopic(MemoryBus(again.broker)))
    for _ in range(60):
        again.today.sleep(1.0)
    for made in (original, again):
        newest = msgspec.json.decode(made.broker.read("alert-state")[-1].value or b"", type=AlertState)
        assert (newest.state, newest.pending) == ("NORM", "RAISE")


def test_commands_are_refused_and_none_ends_by_the_clock(night: Deployment, tmp_path: Path) -> None:
    again = replayed(archived(night, tmp_path), speed=math.inf)
    gateway, operators = again.server.find(Gateway), again.server.find(OperatorApi)
    assert gateway is not None
    assert operators is not None
    why = r"this deployment shows a replay \(REPLAY .* at full speed, ended\): commands are shown there and never"
    with pytest.raises(CommandRefused, match=why):
        gateway.give(MASTER, "Off", None)
    with pytest.raises(CommandRefused, match=why):
        operators.act("Acknowledge", "ACKNOWLEDGE", "{}")
    for topic in ("commands", "command-acks", "alerts"):
        assert again.broker.read(topic) == []


class ArchiveServer:
    """The device server of an archive worker, and the position of a replay."""

    def __init__(self, *, replay: bool = True) -> None:
        self.log, self.today = MemoryLog(), ManualClock()
        bus: Any = PlainBus(self.log)
        server = Server(
            *(ICD, Settings(archives=1, replay=replay), {"SdpArchive": ["mid-sdp/archive/0"]}, Sink(), bus),
            instance="archive",
            clock=ReplayClock(self.today) if replay else self.today,
            versions={"versionId": "1"},
        )
        self.loop, self.reader = server.event_loop, server.event_loop._open()
        control = server.find(ReplayControl)
        assert control is not None
        self.control = control

    def reach(self, time_us: int, state: Any = "PLAYING") -> None:
        self.log.append(replay_record(position(time_us, state)))
        self.loop.cycle(self.reader)

    def orders(self) -> list[Any]:
        found = [decode(one.value) for one in self.log.records("replay")]
        return [(one.action, one.seconds, one.to) for one in found if isinstance(one, ReplayOrder)]


def test_the_device_of_the_archive_gives_orders() -> None:
    server = ArchiveServer()
    with pytest.raises(CommandRefused, match="the replay has not begun"):
        server.control.give("Pause")
    server.reach(BASE_US)
    ids = [server.control.give("Pause"), server.control.give("Resume"), server.control.give("Step", seconds=60)]
    ids.append(server.control.give("Seek", time="2027-01-15T08:01:00"))
    assert len(set(ids)) == 4
    assert server.orders() == [
        ("PAUSE", 1.0, 0),
        ("RESUME", 1.0, 0),
        ("STEP", 60.0, 0),
        ("SEEK", 1.0, BASE_US + 60 * SECOND),
    ]


@pytest.mark.parametrize(
    ("command", "more", "why"),
    [
        ("Step", {"seconds": 0}, "expected 1 to 86400 s, got 0"),
        ("Seek", {"time": ""}, "argument: expected"),
        ("Seek", {"time": "yesterday"}, "argument: expected"),
        ("Seek", {"time": "2027-01-15T07:59:59"}, "A replay does not go back"),
    ],
)
def test_odd_orders_are_refused(command: str, more: dict[str, Any], why: str) -> None:
    server = ArchiveServer()
    server.reach(BASE_US)
    with pytest.raises(CommandRefused, match=why):
        server.control.give(command, **more)
    assert server.orders() == []


def test_a_replay_that_has_ended_and_a_deployment_without_one_take_no_orders() -> None:
    server = ArchiveServer()
    server.reach(BASE_US, "ENDED")
    with pytest.raises(CommandRefused, match="the replay has ended"):
        server.control.give("Resume")
    with pytest.raises(CommandRefused, match="expected a deployment that shows a replay, got one whose setting"):
        ArchiveServer(replay=False).control.give("Pause")


# The clock


def position(time_us: int, state: Any = "PLAYING", **more: Any) -> ReplayPosition:
    return ReplayPosition(id="position", time=time_us, end=BASE_US + 100 * SECOND, speed=1.0, state=state, **more)


def test_the_clock_runs_evenly_a_moment_behind_the_positions_and_stands_still_with_them() -> None:
    today = ManualClock()
    clock = ReplayClock(today)
    assert (clock.now_us(), clock.reached_us, clock.describe()) == (0, 0, "REPLAY, which has not begun")
    for second in range(3):  # the second one is past, too: it stood on the topic when the process began
        clock.take(position(BASE_US + second * 10 * SECOND))
    assert clock.now() == BASE_US / 1e6 + 20
    today.sleep(2)
    clock.take(position(BASE_US + 30 * SECOND))
    assert clock.reached_us == BASE_US + 30 * SECOND
    assert clock.now() < BASE_US / 1e6 + 30
    today.sleep(0.25)
    clock.take(position(BASE_US + 40 * SECOND + 900_000, "PAUSED"))
    today.sleep(0.375)
    assert clock.now() == pytest.approx(BASE_US / 1e6 + 35.45)
    today.sleep(1)
    assert clock.now() == pytest.approx(BASE_US / 1e6 + 40.9)
    assert clock.describe() == "REPLAY 2027-01-15 08:00:40 UTC at 1x, paused"
    today.sleep(60)
    assert clock.now() == pytest.approx(BASE_US / 1e6 + 40.9)
    assert clock.describe() == "REPLAY 2027-01-15 08:00:40 UTC at 1x, paused, without a sign of life"
    assert clock.monotonic() == today.monotonic()


# Orders


class Orders:
    """Gives orders at times of a clock, and keeps the positions."""

    def __init__(self, clock: ManualClock, **orders: ReplayOrder) -> None:
        self._clock, self._began = clock, clock.now()
        self._orders = [(float(at.removeprefix("at_")), order) for at, order in orders.items()]
        self.told: list[ReplayPosition] = []

    def tell(self, message: ReplayPosition) -> None:
        self.told.append(message)

    def orders(self) -> Sequence[ReplayOrder]:
        due = [order for at, order in self._orders if self._clock.now() - self._began >= at - 1e-6]
        self._orders = self._orders[len(due) :]
        return due


def order(action: Any, **more: Any) -> ReplayOrder:
    return make_order(action, "test", now=1.0, **more)


class Copies:
    """Takes records with the time at which they came."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock, self._began = clock, clock.now()
        self.failed = 0
        self.taken: list[tuple[float, int]] = []

    def copy(self, columns: PartitionColumns) -> None:
        at = round(self._clock.now() - self._began, 2)
        self.taken.extend((at, (time * 1000 - BASE_US) // SECOND) for time in columns.timestamps)

    def poll(self, timeout: float = 0.0) -> None:
        pass

    def flush(self, timeout: float) -> bool:
        return True


def played(
    folder: Path, speed: float = 1.0, seconds: int = 10, **orders: ReplayOrder
) -> tuple[Any, list[ReplayPosition]]:
    """Play records of each second, and return when each was written, and the positions."""
    log = MemoryLog({"state": 1})
    for second in range(seconds):
        log.append(record("state", b"k", b"{}", at_us=BASE_US + second * SECOND))
    archive(log, store := FolderStore(folder), "state")
    clock = ManualClock()
    copies, steering = Copies(clock), Orders(clock, **orders)
    plan = plan_replay(store, ICD, BASE_US, BASE_US + (seconds - 1) * SECOND, prefix="replay.")
    play(store, plan, copies, clock, speed=speed, report=lambda *_: None, steering=steering)
    return copies.taken, steering.told


def test_a_pause_holds_the_replay_until_it_is_told_to_go_on(tmp_path: Path) -> None:
    taken, told = played(tmp_path, **{"at_2.5": order("PAUSE"), "at_20": order("RESUME")})
    assert taken[:3] == [(0.0, 0), (1.0, 1), (2.0, 2)]
    assert taken[3:5] == [(pytest.approx(20.5, abs=0.05), 3), (pytest.approx(21.5, abs=0.05), 4)]
    paused = [one for one in told if one.state == "PAUSED"]
    assert len({one.time for one in paused}) == 1
    assert paused[0].time == pytest.approx(BASE_US + 2.5 * SECOND, abs=20_000)
    assert (told[0].time, told[-1].state, told[-1].time) == (BASE_US, "ENDED", BASE_US + 9 * SECOND)


def test_a_step_plays_some_seconds_and_stands_still(tmp_path: Path) -> None:
    taken, _ = played(
        tmp_path, **{"at_0": order("PAUSE"), "at_5": order("STEP", seconds=2.0), "at_20": order("RESUME")}
    )
    assert taken[:3] == [(0.0, 0), (pytest.approx(6.0, abs=0.05), 1), (pytest.approx(7.0, abs=0.05), 2)]
    assert taken[3][0] == pytest.approx(21.0, abs=0.05)


def test_a_seek_goes_on_at_once_and_then_as_before(tmp_path: Path) -> None:
    to = BASE_US + 6 * SECOND
    taken, _ = played(tmp_path, **{"at_1.5": order("SEEK", to=to)})
    assert [at for at, second in taken if 2 <= second <= 6] == [pytest.approx(1.5, abs=0.05)] * 5
    assert taken[7] == (pytest.approx(2.5, abs=0.05), 7)
    folder = tmp_path / "paused"
    taken, _ = played(folder, **{"at_0": order("PAUSE"), "at_1": order("SEEK", to=to), "at_9": order("RESUME")})
    assert [at for at, second in taken if 1 <= second <= 6] == [pytest.approx(1.0, abs=0.05)] * 6
    assert taken[7] == (pytest.approx(10.0, abs=0.05), 7)


@pytest.mark.parametrize("to", [BASE_US + SECOND, BASE_US + 9 * SECOND])
def test_a_replay_neither_goes_back_nor_past_its_end(tmp_path: Path, to: int) -> None:
    seek = order("SEEK", to=to)
    taken, told = played(tmp_path, **{"at_2": seek})
    assert [at for at, _ in taken[:4]] == [0.0, 1.0, 2.0, 3.0]
    refused = {one.refused for one in told if one.order == seek.id}
    assert len(refused) == 1
    assert "A replay does not go back: start another one, with a new SDP_TOPIC_PREFIX" in refused.pop()


def test_a_replay_at_full_speed_stands_still_too(tmp_path: Path) -> None:
    clock = ManualClock()
    course = Course(clock, 0, 100 * SECOND, math.inf)
    assert course.limit_us == 100 * SECOND
    course.reach(5 * SECOND)
    course.take(order("PAUSE"))
    assert course.limit_us == 5 * SECOND
    course.take(order("STEP", seconds=3.0))
    assert course.limit_us == 8 * SECOND
    course.reach(8 * SECOND)
    assert (course.position().state, course.limit_us) == ("PAUSED", 8 * SECOND)
    course.take(order("RESUME"))
    assert (course.position().state, course.limit_us, course.position().speed) == ("PLAYING", 100 * SECOND, 0.0)


def test_the_end_of_a_replay_is_not_ahead_of_the_clock() -> None:
    clock = ManualClock(BASE_US / 1e6 + 60)
    course = Course(clock, BASE_US, BASE_US + 3600 * SECOND, math.inf)
    course.reach(BASE_US + 50 * SECOND)
    course.end()
    assert (course.position().state, course.position().time) == ("ENDED", BASE_US + 60 * SECOND)


def test_a_broken_message_on_the_topic_changes_nothing() -> None:
    log = MemoryLog()
    bus: Any = PlainBus(log)
    clock = ReplayClock(ManualClock())
    follower = ReplayFollower(lambda: bus, clock)
    for one in (record("replay", b"x", b"junk"), replay_record(order("PAUSE")), replay_record(position(BASE_US))):
        log.append(one)
    log.append(record("replay", b"position", None))
    follower.step()
    assert clock.reached_us == BASE_US

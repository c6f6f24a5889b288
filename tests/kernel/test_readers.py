"""Several readers of one device server: each topic has its isolation, and none holds up another."""

from collections.abc import Sequence
from typing import Any

from facade.kernel.bus.port import Record
from facade.kernel.manifest import Isolation
from facade.kernel.runtime.readers import open_readers

ISOLATION = {"bulk": Isolation.READ_COMMITTED, "urgent": Isolation.READ_UNCOMMITTED}
START = {"bulk": {0: 3}, "urgent": {0: 7}}


class Log:
    """A reader of one topic: has so many records, and is silent from then on."""

    def __init__(self, topic: str, bus: "Bus") -> None:
        self.topic, self._bus = topic, bus

    def take(self, limit: int, timeout: float) -> Sequence[Record]:
        found = min(limit, self._bus.waiting.get(self.topic, 0))
        if not found:
            self._bus.time += timeout
            if self._bus.time >= self._bus.urgent_at:
                self._bus.waiting["urgent"] = 1
                self._bus.urgent_at = float("inf")
            return ()
        self._bus.waiting[self.topic] -= found
        return [Record(topic=self.topic, key=None, value=b"")] * found

    def caught_up(self, topic: str) -> bool:
        return not self._bus.waiting.get(topic)

    def close(self) -> None:
        self._bus.open.remove(self.topic)


class Bus:
    """In the place of Kafka."""

    def __init__(self, **waiting: int) -> None:
        self.waiting = waiting
        self.time, self.urgent_at = 0.0, float("inf")
        self.open: list[str] = []
        self.committed: dict[str, bool] = {}

    def open_reader(self, topics: Any, start: Any, *, committed: bool = True, resets: bool = True) -> Log:
        name = "+".join(topics)
        assert start == {topic: START[topic] for topic in topics}
        self.open.append(name)
        self.committed[name] = committed
        return Log(name, self)


def opened(bus: Any, *topics: str) -> Any:
    start = {topic: START[topic] for topic in topics}
    return open_readers(bus, dict.fromkeys(topics), start, ISOLATION)


def taken(reader: Any, limit: int, timeout: float = 0.0) -> list[str]:
    return [record.topic for record in reader.take(limit, timeout)]


def test_each_topic_is_read_with_its_own_isolation() -> None:
    bus = Bus(bulk=1)
    reader = opened(bus, "bulk", "urgent")
    assert bus.committed == {"bulk": True, "urgent": False}
    assert not reader.caught_up("bulk")
    assert reader.caught_up("urgent")
    reader.close()
    assert bus.open == []


def test_a_storm_on_one_topic_leaves_the_others_their_turn() -> None:
    reader = opened(Bus(bulk=1_000_000, urgent=600), "bulk", "urgent")
    # As an eager event loop takes them: one, and then what else is there.
    found = [topic for _ in range(3) for topic in taken(reader, 1) + taken(reader, 500)]
    assert found.count("urgent") == 600


def test_a_silent_topic_does_not_hold_up_what_comes_on_another() -> None:
    bus = Bus()
    reader = opened(bus, "bulk", "urgent")
    bus.urgent_at = 0.001
    assert taken(reader, 1, 0.02) == ["urgent"]
    assert bus.time < 0.01


def test_who_reads_no_topic_has_a_reader_that_waits() -> None:
    bus = Bus()
    reader = opened(bus)
    assert taken(reader, 1, 0.02) == []
    assert bus.time == 0.02

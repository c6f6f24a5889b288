"""Processing blocks from the topic to what SdpSubarray and SdpMaster show, on the simulation's brokers."""

import json
from dataclasses import replace
from itertools import groupby
from typing import Any

import pytest

from facade.flows.blocks import flow as blocks_flow
from facade.flows.blocks.flow import MOST_SHOWN, BlocksFlow, values
from facade.flows.blocks.source import BLOCKS, STATES, BlockSource
from facade.kernel.bus.port import Record
from facade.kernel.clock import ManualClock, Time
from facade.kernel.outcome import USED, Suppressed
from tests.support.commanding import DeviceServers
from tests.support.heaps import BASE_US

FIRST, SECOND, MASTER = "mid-sdp/subarray/01", "mid-sdp/subarray/02", "mid-sdp/control/0"
EB = "eb-test-20261123-00001"


class Bench(DeviceServers):
    """A controller that tells of its blocks, and the device servers that show them."""

    def __init__(self) -> None:
        super().__init__(
            subarray={"SdpSubarray": [FIRST, SECOND]}, control={"SdpMaster": [MASTER], "SdpBus": ["mid-sdp/bus/0"]}
        )
        self.source = BlockSource("processing-controller", self.broker.append, self.clock)

    def tell(self, number: int, state: str, subarray: int = 1, eb_id: str = EB, **more: Any) -> None:
        self.source.tell(f"pb-test-{number:05d}", eb_id, subarray, "batch", state, **more)

    def shown(self, name: str, device: str = FIRST) -> Any:
        return self.shows(name, device)

    def counts(self, device: str = FIRST) -> dict[str, int]:
        return {state: self.shown(f"blocks{state.title()}", device) for state in STATES}


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_blocks_are_shown_by_subarray_and_for_sdp_and_are_back_after_a_kill(bench: Bench) -> None:
    bench.tell(1, "RUNNING", progress=20.0, dependencies=["pb-test-00000"])
    at = bench.clock.now_us()
    bench.tell(2, "WAITING")
    bench.tell(3, "FINISHED")
    bench.tell(4, "FAILED", text="no\x1bsolution")
    bench.tell(5, "STARTING", subarray=2)
    bench.cycle()
    for _ in range(2):
        assert bench.counts() == {"STARTING": 0, "WAITING": 1, "RUNNING": 1, "FINISHED": 1, "FAILED": 1}
        assert bench.counts(MASTER) == {"STARTING": 1, "WAITING": 1, "RUNNING": 1, "FINISHED": 1, "FAILED": 1}
        first, second = map(json.loads, bench.shown("processingBlocks"))
        assert (first["pb_id"], first["progress"], first["dependencies"]) == ("pb-test-00001", 20.0, ["pb-test-00000"])
        assert (second["state"], "progress" in second) == ("WAITING", False)
        assert len(bench.shown("processingBlocks", MASTER)) == 3
        assert json.loads(bench.shown("newestFailure"))["pb_id"] == "pb-test-00004"
        assert bench.sink.shown[FIRST, "blocksFailed"].time == at
        assert bench.shown("newestFailure", SECOND) == ""
        bench.start()


def test_a_failed_block_is_an_alarm_until_the_next_execution_block(bench: Bench) -> None:
    def alerts() -> list[tuple[str, str]]:
        found = [json.loads(one.value or b"{}") for one in bench.broker.read("alerts")]
        return [(one["source"], one["state"]) for one in found if one["condition"] == "processingBlockFailed"]

    bench.tell(1, "FAILED", text="no solution")
    bench.cycle()
    assert alerts() == [("sdp-facade/subarray/01", "ACTIVE")]
    assert any("pb-test-00001 failed: no solution" in line for line in bench.shown("healthInfo", MASTER))
    bench.start()
    bench.cycle()
    assert set(alerts()) == {("sdp-facade/subarray/01", "ACTIVE")}
    bench.tell(2, "WAITING", eb_id="eb-test-20261123-00002")
    bench.cycle(20)
    assert alerts()[-1] == ("sdp-facade/subarray/01", "CLEARED")
    assert bench.shown("blocksFailed") == 1
    bench.tell(3, "FAILED", eb_id="eb-test-20261123-00002")
    bench.cycle()
    bench.source.remove("pb-test-00003")
    bench.cycle(20)
    assert [state for state, _ in groupby(state for _, state in alerts())] == ["ACTIVE", "CLEARED"] * 2


def test_the_last_execution_block_does_not_depend_on_the_clocks_of_controllers() -> None:
    clock, log = ManualClock(), list[Record]()
    source = BlockSource("processing-controller", log.append, clock)
    clock.sleep(7200.0)
    source.tell("pb-test-00001", EB, 1, "batch", "RUNNING")
    clock.sleep(-7200.0)
    source.tell("pb-test-00002", "eb-test-20261123-00002", 1, "batch", "FAILED")
    source.tell("pb-test-00003", "eb-test-20261123-00003", 1, "batch", "WAITING")
    source.remove("pb-test-00003")
    flow = BlocksFlow([1])
    found = []
    for at, record in enumerate(log):
        flow.fold(replace(record, timestamp_us=Time(BASE_US + at)), count=True)
        found.append([one.pb_id for one in flow.subarrays[1].failures()])
    assert found == [[], ["pb-test-00002"], [], ["pb-test-00002"]]


GOOD = {
    **{"schema": "processing-block/1", "pb_id": "pb-a-1", "eb_id": EB, "subarray": 1, "kind": "batch"},
    **{"state": "RUNNING", "sequence": 1, "time": BASE_US},
}


def test_a_source_refuses_what_nobody_could_read(bench: Bench) -> None:
    with pytest.raises(ValueError, match=r"processing block 'pb-test-00001': \$\.state"):
        bench.tell(1, "CANCELLED")
    assert bench.broker.read(BLOCKS) == []


def told(number: int, state: str, sequence: int, **more: Any) -> Record:
    pb_id = f"pb-a-{number}"
    value = {**GOOD, "pb_id": pb_id, "state": state, "sequence": sequence, **more}
    return Record(topic=BLOCKS, key=pb_id.encode(), value=json.dumps(value).encode())


def fold(*records: Record) -> BlocksFlow:
    flow = BlocksFlow([1, 2])
    for record in records:
        flow.fold(record, count=True)
    return flow


def counts(flow: BlocksFlow) -> dict[int, dict[str, int]]:
    return {number: dict(+one.counts) for number, one in flow.subarrays.items()}


def test_memory_is_bounded_and_counts_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ended blocks the ids are kept, of old ones not even those; what runs has room behind all that waits."""
    monkeypatch.setattr(blocks_flow, "MOST_ENDED", 100)
    monkeypatch.setattr(blocks_flow, "MOST_OPEN", 500)
    monkeypatch.setattr(blocks_flow, "MOST_BEYOND", 50)
    monkeypatch.setattr(blocks_flow, "MOST_FAILED", 80)
    flow = fold(*(told(number, "FINISHED" if number % 2 else "FAILED", 1) for number in range(1000)))
    assert counts(flow)[1] == {"FINISHED": 500, "FAILED": 500}
    assert (len(flow._ended), len(flow.subarrays[1].failed)) == (100, 80)
    for number in range(2000, 2500):
        assert flow.fold(told(number, "WAITING", 1), count=True) is USED
    assert flow.fold(told(2500, "WAITING", 1), count=True) == Suppressed("too-many")
    assert len(values(flow.subarrays.values())["processingBlocks"]) == MOST_SHOWN
    for number in range(3000, 3050):
        assert flow.fold(told(number, "RUNNING", 1), count=True) is USED
    assert flow.fold(told(3050, "RUNNING", 1), count=True) == Suppressed("too-many")
    for number in (*range(2000, 2500), *range(3000, 3050)):
        flow.fold(told(number, "FINISHED", 2), count=True)
    assert counts(flow)[1] == {"FINISHED": 1050, "FAILED": 500}
    assert not flow._open
    assert not flow.subarrays[1].open
    assert flow._open_bytes == 0
    monkeypatch.setattr(blocks_flow, "MOST_OPEN_BYTES", 4 * len(told(5000, "WAITING", 1).value or b""))
    outcomes = [flow.fold(told(number, "WAITING", 1), count=True) for number in range(5000, 5005)]
    assert outcomes == [USED] * 4 + [Suppressed("too-many")]


def test_what_runs_is_shown_before_what_waits_however_many_are_open() -> None:
    """Also once others have ended, and the same after a restart, whose first records are other ones."""

    def shown(flow: BlocksFlow) -> list[str]:
        found = values(flow.subarrays.values())["processingBlocks"]
        return [json.loads(one)["pb_id"] for one in found]  # type: ignore[union-attr,arg-type]

    history = [told(number, "WAITING", 1) for number in range(3000)]
    history += [told(number, "RUNNING", 2) for number in range(2900, 2910)]
    running = [f"pb-a-{number}" for number in range(2900, 2910)]
    flow = fold(*history)
    assert sorted(shown(flow)[:10]) == running
    assert len(shown(flow)) == MOST_SHOWN
    history += [told(number, "FINISHED", 3) for number in range(2890)]
    for record in history[3010:]:
        flow.fold(record, count=True)
    assert sorted(shown(flow)[:10]) == running
    assert len(shown(flow)) == MOST_SHOWN
    newest = {record.key: record for record in history}
    assert shown(fold(*newest.values())) == shown(fold(*reversed(newest.values()))) == shown(flow)


def test_the_order_of_open_blocks_takes_no_memory_of_states_that_have_passed() -> None:
    flow = fold(*(told(number % 20, STATES[number % 3], number) for number in range(1, 5000)))
    assert len(flow.subarrays[1]._order) <= 2 * 20 + 100
    assert len(flow.subarrays[1].first(100)) == 20

"""Times in another unit and keys of another record are dead letters that say what was probably meant, on each topic."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from facade.flows.blocks.source import block_record, read_block
from facade.flows.quality.records import metric_record, read_header
from facade.flows.reservations.ledger import read_reservation, reservation_record
from facade.kernel.bus.port import Record
from facade.kernel.clock import ManualClock
from facade.kernel.codec.plausible import wrong_key, wrong_unit
from facade.kernel.config import Settings
from facade.kernel.icd.load import load
from facade.kernel.outcome import Outcome, RecordRejected
from facade.sdp.device_state import DeviceStates, state_record
from facade.sdp.messages import Metric, ProcessingBlock, Reservation, State
from facade.tools.dead_letters import trials_of
from tests.support.heaps import BASE_US, encoded, heap

ICD = load()
DEVICE = "mid-sdp/subarray/02"


@pytest.mark.parametrize(
    ("time", "said"),
    [
        (BASE_US, None),
        (BASE_US - 86_400_000_000, None),
        (0, None),  # not known
        (1_000_000, None),  # no unit makes sense of it
        (BASE_US // 1_000_000, "got 1800000000, which is 2027-01-15T08:00:00Z in seconds"),
        (BASE_US // 1_000, "got 1800000000000, which is 2027-01-15T08:00:00Z in milliseconds"),
        (BASE_US * 1_000, "got 1800000000000000000, which is 2027-01-15T08:00:00Z in nanoseconds"),
    ],
)
def test_a_time_in_another_unit_says_which(time: int, said: str | None) -> None:
    found = wrong_unit(time, BASE_US + 5_000_000, "$.time")
    assert (found is None) is (said is None)
    if found is not None:
        assert (found.reason, found.path) == ("time-unit", "$.time")
        assert found.detail == f"expected Unix time in microseconds, {said}"


def test_nothing_is_told_by_a_broker_whose_clock_was_never_set() -> None:
    assert wrong_unit(1_800_000, 1_700_000_000_000, "$.time") is None


def test_a_wrong_key_says_which_was_expected() -> None:
    assert wrong_key(b"a/b", "a/b", "$.a") is None
    assert wrong_key(b"a\xff", "a/b", "$.a") == RecordRejected(
        "key", "$.a", r"expected the key 'a/b' for this content, got 'a\\xff'"
    )
    assert "got none" in str(wrong_key(None, "a/b", "$.a"))


def _state(time: int) -> Record:
    message = State(device=DEVICE, attribute="errorMessages", value="[]", time=time, origin="receive")
    return state_record(message)


def _states(record: Record) -> Outcome:
    return DeviceStates(ICD, {DEVICE: "SdpSubarray"}).fold(record, count=True)


def _block(time: int) -> Record:
    block = ProcessingBlock(
        pb_id="pb-1", eb_id="eb-1", subarray=1, kind="realtime", state="RUNNING", sequence=1, time=time
    )
    return block_record(block)


def _reservation(time: int) -> Record:
    one = Reservation(
        id="r-1", kind="nodes", subarray=1, state="REQUESTED", expires=time + 10, sequence=1, time=time, quantity=1.0
    )
    return reservation_record(one)


def _metric(time: int) -> Record:
    header = Metric(subarray=1, metric="flaggedFraction", time=time, encoding="npy", shape=[], dtype="float64", unit="")
    return metric_record(header, np.float64(0.1).tobytes())


def _heap(time: int) -> Record:
    (value,) = encoded(heap(time=time))
    return Record(topic="ingest.heaps", key=b"0", value=value)


READERS: dict[str, tuple[Callable[[int], Record], Callable[[Record], object]]] = {
    "state": (_state, _states),
    "processing-blocks": (_block, read_block),
    "reservations": (_reservation, read_reservation),
    "quality": (_metric, read_header),
    "ingest.heaps": (_heap, trials_of(ICD, Settings(), ManualClock(BASE_US / 1e6))),
}


@pytest.mark.parametrize("topic", READERS)
@pytest.mark.parametrize("factor", [1_000_000, 1_000])
def test_each_topic_refuses_times_in_another_unit(topic: str, factor: int) -> None:
    make, read = READERS[topic]
    good = replace(make(BASE_US), timestamp_us=BASE_US)
    assert not isinstance(read(good), RecordRejected)
    found = read(replace(make(BASE_US // factor), timestamp_us=BASE_US))
    assert isinstance(found, RecordRejected)
    assert found.reason == "time-unit"


@pytest.mark.parametrize("topic", [topic for topic in READERS if topic != "ingest.heaps"])
def test_each_topic_of_keys_refuses_another_key(topic: str) -> None:
    """A compacted topic keeps the newest record of each key: an older value could come back after a restart."""
    make, read = READERS[topic]
    found = read(replace(make(BASE_US), timestamp_us=BASE_US, key=b"receive-0007"))
    assert isinstance(found, RecordRejected)
    assert found.reason == "key"
    assert "got 'receive-0007'" in found.detail

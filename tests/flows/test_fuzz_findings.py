"""What the fuzz found, each made as small as it gets."""

import math

import pytest

from facade.kernel.bus.port import Record
from facade.kernel.reading import Quality, Reading
from facade.kernel.runtime.snapshots import Snapshot, decode_snapshot, load_readings, store_readings, to_record
from facade.sdp.messages import AccountTotals
from tests.support.whole import Site


def test_a_snapshot_of_values_that_are_no_numbers_can_be_read_again():
    """A table as `.npy` has no time of validity: the snapshot with it was refused, and the accounts in it lost."""
    shown = {
        "validFrom": Reading(math.nan, 1.0, Quality.INVALID),
        "snr": Reading(math.inf, 1.0, Quality.INVALID),
        "gains": Reading((1.0, math.nan), 1.0),
        "image": Reading(((1.0, math.nan), (2.0, 3.0)), 1.0),
        "names": Reading(("a", "b"), 1.0),
        "age": Reading(2.0, 1.0),
    }
    snapshot = Snapshot(
        instance="i",
        topic="tables",
        time=1,
        offsets={},
        rebuild_from={},
        account=AccountTotals(consumed=7),
        ledger={},
        readings=store_readings({"d": shown}),
    )
    found = decode_snapshot(to_record(snapshot).value)
    assert isinstance(found, Snapshot), found
    assert found.account.consumed == 7
    readings = load_readings(found)["d"]
    assert list(readings) == ["gains", "image", "names", "age"]
    assert repr(readings["gains"].value) == "(1.0, nan)"
    assert repr(readings["image"].value) == "((1.0, nan), (2.0, 3.0))"
    assert readings["names"] == shown["names"]


NUMBERS = (2**53, 10**30, 10**400, 1e308, -1e308, -(10**400))
WRONG = [(key, number) for key in ("sum", "min", "max", "last") for number in NUMBERS]
WRONG.append(("m2", 1e308))  # of its other numbers the schema says the rest


@pytest.mark.needs("sdp_facade_lab")
@pytest.mark.parametrize("field", ["latency", "unknown"])
def test_summaries_with_numbers_beyond_all_sums_are_refused_and_harm_no_other(field):
    """One with a sum of 400 digits stopped all events of its server, and the node's summaries for good."""
    from sdp_facade_lab.fault_runs import fuzz_records as good

    site = Site()
    site.cycle()
    for count, (key, number) in enumerate(WRONG):
        for sequence in (2 * count, 2 * count + 1):
            document = good.documents(site.clock.now_us(), sequence)["ingest-summary"]
            statistics = document["partials"][0]["fields"]["latency"]
            if sequence == 2 * count:
                document["partials"][0]["fields"] = {"latency": statistics, field: {**statistics, key: number}}
            made = good.record("ingest.summary", "ingest-summary", document)
            site.send(Record(topic=made.topic, key=made.key, value=made.value, partition=0))  # of its rack
        site.cycle(4)
        letters = site.broker.read("dead-letters")
        assert len(letters) == count + 1, (key, number)
        assert dict(letters[-1].headers)["dl.reason"] in (b"inconsistent", b"not-json", b"schema")
    assert site.shows("mid-sdp/ingest/0000", "heapsTotal") == 2 * len(WRONG)

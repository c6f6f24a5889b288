"""What the fuzz found, each made as small as it gets."""

import math

import pytest

from facade.kernel.bus.port import Record
from facade.kernel.reading import Quality, Reading
from facade.kernel.runtime.snapshots import Snapshot, decode_snapshot, load_readings, store_readings, to_record
from facade.sdp.messages import AccountTotals
from sdp_facade_lab.fault_runs import fuzz_records as good
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
    readings = load_readings(found.readings)["d"]
    assert list(readings) == ["gains", "image", "names", "age"]
    assert repr(readings["gains"].value) == "(1.0, nan)"
    assert repr(readings["image"].value) == "((1.0, nan), (2.0, 3.0))"
    assert readings["names"] == shown["names"]


@pytest.mark.parametrize("field", ["latency", "unknown"])
@pytest.mark.parametrize("key", ["sum", "min", "max", "m2", "last"])
@pytest.mark.parametrize("number", [2**53, 10**30, 10**400, 1e308, -1e308, -(10**400)])
def test_a_summary_with_numbers_beyond_all_sums_is_refused_and_harms_no_other(field, key, number):
    """One with a sum of 400 digits stopped all events of its server, and the node's summaries for good."""
    if key == "m2" and number != 1e308:
        return  # the schema says the rest
    site = Site()
    site.cycle()
    for sequence, wrong in enumerate((True, False)):
        document = good.documents(site.clock.now_us(), sequence)["ingest-summary"]
        statistics = document["partials"][0]["fields"]["latency"]
        if wrong:
            document["partials"][0]["fields"] = {"latency": statistics, field: {**statistics, key: number}}
        made = good.record("ingest.summary", "ingest-summary", document)
        site.send(Record(topic=made.topic, key=made.key, value=made.value, partition=0))  # of its rack
        site.cycle(4)
    (letter,) = site.broker.read("dead-letters")
    assert dict(letter.headers)["dl.reason"] in (b"inconsistent", b"not-json", b"schema")
    assert site.shows("mid-sdp/ingest/0000", "heapsTotal") == 2

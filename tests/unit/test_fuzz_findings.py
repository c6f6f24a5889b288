"""What the fuzz found, each made as small as it gets."""

import math

from facade.messages import AccountTotals
from facade.reading import Quality, Reading
from facade.runtime.snapshots import Snapshot, decode_snapshot, load_readings, store_readings, to_record


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

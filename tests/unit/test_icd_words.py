"""What the ICD says in keys, said in words: the same on a terminal and in the reference pages."""

import pytest

from facade.icd.load import load
from facade.icd.model import Attribute, Sampling
from facade.icd.topic_model import Limits
from facade.icd.words import (
    duration_in_words,
    families,
    limits_in_words,
    ranges,
    sampling_in_words,
    source_in_words,
    staleness_in_words,
    type_in_words,
)

ICD = load()
NODE = {one.name: one for one in ICD.classes["SdpIngestNode"].attributes}


def number(name: str, label: str, description: str = "A number.", **more: object) -> Attribute:
    return Attribute(name=name, type="DevLong", label=label, description=description, **more)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("heapRate", "records per second, window, ingest.heaps"),
        ("packetsReceivedRate", "received per second, window, ingest.heaps"),
        ("packetLossFraction", "lost / (received + lost + late), window, ingest.heaps"),
        ("latencyP99", "0.99 quantile of latency, window, ingest.heaps"),
        ("packetsLostTotal", "sum of lost, total, ingest.heaps"),
    ],
)
def test_a_source(name: str, words: str) -> None:
    assert source_in_words(NODE[name]) == words


def test_a_source_that_is_no_record() -> None:
    master = {one.name: one for one in ICD.classes["SdpMaster"].attributes}
    bus = {one.name: one for one in ICD.classes["SdpBus"].attributes}
    assert source_in_words(master["adminMode"]) == "set by clients"
    assert source_in_words(master["healthState"]) == "provided by the device class"
    assert source_in_words(bus["ingestHeapsDeadLettered"]) == "dead lettered of the account of ingest.heaps"


def test_limits_count_when_they_are_reached() -> None:
    limits = Limits(min_alarm=-1, min_warning=0, max_warning=2.5, max_alarm=1e6)
    assert limits_in_words(limits) == "alarm <= -1, warning <= 0, warning >= 2.5, alarm >= 1e+06"
    assert limits_in_words(Limits(max_alarm=1)) == "alarm >= 1"
    assert limits_in_words(None) == ""


def test_sampling_staleness_and_types() -> None:
    assert sampling_in_words(Sampling(shortest=0.5, longest=10)) == "0.5-10 s"
    assert sampling_in_words(Sampling(absolute=2, relative=0.01)) == "1-10 s, ±2, ±1 %"
    node = ICD.classes["SdpIngestNode"]
    assert (staleness_in_words(node, NODE["heapRate"]), staleness_in_words(node, NODE["heapsTotal"])) == (
        "3 s",
        "never",
    )
    assert type_in_words(number("a", "A", length=4, height=3)) == "DevLong[3][4]"
    assert [type_in_words(number("a", "A", length=4)), type_in_words(number("a", "A"))] == ["DevLong[4]", "DevLong"]


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.25, "0.25 s"), (59, "59 s"), (60, "1 min"), (90, "90 s"), (7200, "2 h"), (604800, "7 d")]
)
def test_a_duration(seconds: float, words: str) -> None:
    assert duration_in_words(seconds) == words


def test_a_family_is_what_one_entry_stands_for() -> None:
    found = list(families(ICD.classes["SdpCalibration"].attributes))
    (family,) = [one for one in found if one.parts]
    assert (family.name, family.label, len(family.parts)) == ("pointing_cal_{}", "Pointing offsets of {}", 197)
    assert ranges(family.parts) == "SKA001..SKA133, MKT000..MKT063"
    assert sum(max(len(one.parts), 1) for one in found) == len(ICD.classes["SdpCalibration"].attributes)


def test_neighbours_that_only_look_alike_are_no_family() -> None:
    one = number("rate_A", "Rate of A", "Rate of A.")
    others = [
        number("rate_B", "Rate of B", "Rate of C."),
        number("rate_B", "Rate of B", "Rate of B.", unit="s"),
        number("other_B", "Rate of B", "Rate of B."),
        number("rate_B", "The B", "Rate of B."),
        number("rate_A", "Rate of A", "Rate of A."),
    ]
    for other in others:
        assert [family.parts for family in families([one, other])] == [(), ()]
    like = number("rate_B", "Rate of B", "Rate of B.")
    assert [family.parts for family in families([one, like])] == [("A", "B")]


def test_ranges_of_names_that_do_not_count_up() -> None:
    assert ranges(["x", "y", "a1", "a2", "a4", "b09", "b10"]) == "x, y, a1..a2, a4, b09..b10"

"""What programs of SDP know of the telescope at a time."""

import math
from typing import Any

import numpy as np
import pytest

from facade.flows.mirror.messages import MODEL, TelescopeAttribute, attribute_record
from facade.flows.mirror.telescope_model import SILENT, TelescopeModel
from facade.kernel.bus.port import Record
from facade.kernel.config import Settings

AZ = "mid-dish/dish-manager/ska001/azimuth"


class Site:
    """A model, and the mirror that writes what it takes."""

    def __init__(self, **options: Any) -> None:
        self.model = TelescopeModel(Settings(bootstrap="127.0.0.1:1"), **options)
        self.number = 0

    def say(self, time: float, value: Any, *, number: int = 0, heard: float = 0.0, **changes: Any) -> None:
        self.number = number or self.number + 1
        said = {"type": "DevDouble", "quality": "VALID", "connection": "CONNECTED", "by": "EVENT", **changes}
        message = TelescopeAttribute(name=AZ, number=self.number, time=round(time * 1e6), value=value, **said)
        record = attribute_record(message)
        heard_us = round((heard or time) * 1e6)
        self.model.take([Record(topic=MODEL, key=record.key, value=record.value, timestamp_us=heard_us)])

    def at(self, time: float) -> tuple[Any, str]:
        found = self.model.at(time, AZ.upper())[AZ]
        return found.value, found.quality


@pytest.fixture
def site() -> Site:
    return Site()


def test_numbers_are_interpolated_between_two_values(site: Site):
    site.say(10.0, 1.0)
    site.say(12.0, 2.0)
    assert [site.at(time) for time in (9.0, 10.0, 10.5, 12.0, 13.0)] == [
        (None, "INVALID"),
        (1.0, "VALID"),
        (1.25, "VALID"),
        (2.0, "VALID"),
        (2.0, "VALID"),
    ]
    found = site.model.at(10.5)[AZ]
    assert (found.time, found.is_interpolated) == (10.5, True)
    assert site.model.names() == [AZ]


def test_each_element_of_a_spectrum_is_interpolated_and_another_shape_is_not(site: Site):
    site.say(10.0, [100.0, 1.0, 2.0])
    site.say(11.0, [101.0, 3.0, "NaN"])
    site.say(12.0, [5.0])
    value, _ = site.at(10.5)
    assert value[:2].tolist() == [100.5, 2.0]
    assert math.isnan(value[2])
    assert np.array_equal(site.at(11.5)[0], [101.0, 3.0, math.nan], equal_nan=True)


def test_an_angle_goes_the_shorter_way():
    site = Site(wraps={AZ.upper(): 360.0})
    site.say(10.0, 359.0)
    site.say(12.0, 3.0)
    assert [site.at(time)[0] for time in (10.5, 11.0)] == [0.0, 1.0]


@pytest.mark.parametrize("kind", ["DevString", "DevLong", "DevState", "DevEnum", "DevBoolean"])
def test_what_is_no_measured_number_holds_until_the_next(site: Site, kind: str):
    first, second = ("a", "b") if kind in ("DevString", "DevState") else (1, 3)
    site.say(10.0, first, type=kind)
    site.say(12.0, second, type=kind)
    assert site.at(11.0) == (first, "VALID")


@pytest.mark.parametrize("changes", [{"gap": True}, {"number": 3}, {"quality": "INVALID"}], ids=str)
def test_across_a_gap_nothing_is_interpolated(site: Site, changes: dict[str, Any]):
    site.say(10.0, 1.0)
    site.say(12.0, 2.0, **changes)
    assert site.at(11.0) == (1.0, "VALID")


def test_while_the_device_is_away_the_value_is_invalid(site: Site):
    site.say(10.0, 1.0)
    site.say(10.0, 1.0, heard=12.0, connection="DISCONNECTED", quality="INVALID", error="nobody answers")
    site.say(20.0, 5.0, gap=True)
    assert [site.at(time) for time in (11.0, 13.0, 20.0)] == [(1.0, "VALID"), (1.0, "INVALID"), (5.0, "VALID")]
    assert site.model.at(13.0)[AZ].why == "nobody answers"


def test_across_an_invalid_value_nothing_is_interpolated_and_the_past_is_kept(site: Site):
    """Pointing that was INVALID for a while is known before and after, and invalid in between."""
    site.say(10.0, 1.0)
    site.say(12.0, 2.0)
    site.say(14.0, None, type="", quality="INVALID", error="the encoder is broken")
    site.say(20.0, 8.0)
    site.say(22.0, 9.0)
    assert [site.at(time) for time in (11.0, 13.0, 17.0, 20.0, 21.0)] == [
        (1.5, "VALID"),
        (2.0, "VALID"),
        (None, "INVALID"),
        (8.0, "VALID"),
        (8.5, "VALID"),
    ]
    assert site.model.at(17.0)[AZ].why == "the encoder is broken"


def test_without_a_sign_of_life_the_value_is_invalid(site: Site):
    site.say(10.0, 1.0)
    site.say(10.0, 1.0, number=1, heard=20.0)
    assert site.at(20.0 + SILENT / 1e6) == (1.0, "VALID")
    assert site.at(21.0 + SILENT / 1e6) == (1.0, "INVALID")


def test_so_much_of_the_past_is_kept():
    site = Site(keep=5.0)
    for time in range(100):
        site.say(float(time), float(time))
    assert site.at(94.5) == (94.5, "VALID")
    assert site.at(90.0) == (None, "INVALID")


def test_of_two_mirrors_the_later_one_holds_until_it_is_silent(site: Site):
    """Each value comes twice, with numbers of two sequences."""
    site.say(10.0, 1.0, number=7, incarnation="old", epoch=1)
    site.say(11.0, 2.0, number=8, incarnation="new", epoch=2)
    assert site.at(10.5) == (1.0, "VALID"), "who knows what a third one has written in between"
    assert site.model.writers() == []
    for time in range(12, 16):
        site.say(time, float(time), number=time - 4, incarnation="old", epoch=1)
        site.say(time, float(time), number=time - 3, incarnation="new", epoch=2)
    site.say(15.5, -1.0, number=12, incarnation="old", epoch=1)
    assert site.model.writers() == ["new", "old"]
    assert site.at(16.0) == (15.0, "VALID")
    assert site.at(14.5) == (14.5, "VALID")
    site.say(17.0 + SILENT / 1e6, 5.0, number=13, incarnation="old", epoch=1)
    assert site.at(17.0 + SILENT / 1e6) == (5.0, "VALID")
    assert site.at(16.5) == (15.0, "VALID"), "their numbers are no sequence"


def test_what_a_mirror_that_was_killed_had_under_way_is_no_sign_of_life_of_another_value(site: Site):
    site.say(10.0, 1.0, number=7, incarnation="old", epoch=1)
    site.say(11.0, 2.0, number=8, incarnation="old", epoch=1)
    site.say(11.0, 3.0, number=8, incarnation="new", epoch=2, gap=True)
    site.say(10.5, 9.0, number=9, heard=11.5, incarnation="old", epoch=1)
    assert site.at(11.0) == (3.0, "VALID")
    assert site.at(10.5) == (1.5, "VALID")
    assert site.model.writers() == []

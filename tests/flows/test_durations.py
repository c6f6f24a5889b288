"""Durations and times on the command line."""

import pytest

from facade.kernel.errors import ConfigError
from facade.sdp.durations import parse_duration, parse_time


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("10m", 600), ("1h", 3600), ("1h30m", 5400), ("2d", 172_800), ("0.5s", 0.5)]
)
def test_a_duration_is_in_seconds(text, seconds):
    assert parse_duration(text, "--since") == seconds


@pytest.mark.parametrize("text", ["", "10", "m", "-1h", "0s", "30m1h", "1 h", "\u0661h", "1e3s", "9" * 400 + "s"])
def test_what_is_none_is_refused_by_name(text):
    with pytest.raises(ConfigError, match=r"^--since: expected a duration such as 90s, 10m, 1h30m or 2d, got '"):
        parse_duration(text, "--since")


@pytest.mark.parametrize(
    ("text", "time_us"),
    [
        ("1970-01-01", 0),
        ("2027-01-15T08:00", 1_800_000_000_000_000),
        ("2027-01-15T08:00:00.000001Z", 1_800_000_000_000_001),
        ("2027-01-15 09:00+01:00", 1_800_000_000_000_000),
    ],
)
def test_a_time_is_in_utc_unless_it_says_otherwise(text, time_us):
    assert parse_time(text, "--from") == time_us


@pytest.mark.parametrize(
    "text", ["", "now", "08:00", "1969-12-31", "2027-02-30", "2027-01-15T25", "1970-01-01T00+14:00"]
)
def test_what_is_no_time_is_refused_by_name(text):
    with pytest.raises(ConfigError, match=r"^--from: expected a time such as 2027-01-14T18:00 \(UTC\), got '"):
        parse_time(text, "--from")

"""Durations on the command line."""

import pytest

from facade.durations import parse_duration
from facade.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("10m", 600), ("1h", 3600), ("1h30m", 5400), ("2d", 172_800), ("0.5s", 0.5)]
)
def test_a_duration_is_in_seconds(text, seconds):
    assert parse_duration(text, "--since") == seconds


@pytest.mark.parametrize("text", ["", "10", "m", "-1h", "0s", "30m1h", "1 h", "\u0661h", "1e3s", "9" * 400 + "s"])
def test_what_is_none_is_refused_by_name(text):
    with pytest.raises(ConfigError, match=r"^--since: expected a duration such as 90s, 10m, 1h30m or 2d, got '"):
        parse_duration(text, "--since")

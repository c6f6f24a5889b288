"""Times and durations are integers of microseconds; `tests/support/refused_times.py` has what mypy refuses."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from facade.kernel.clock import ManualClock, as_duration, as_seconds, as_time, from_ms, to_ms, utc_seconds, utc_text

ROOT = Path(__file__).parents[2]
OTHERS = {
    "facade/kernel/clock.py": "the only place where times are converted",
    "facade/kernel/bus/kafka/": "settings of Kafka's client, in ms",
    "facade/admin/topics.py": "settings of topics, in ms",
    "facade/archive/": "Kafka's ms in columns of files, and bytes",
    "facade/flows/logs/records.py": "nanoseconds of OTLP",
    "facade/flows/mirror/streaming.py": "nanoseconds of ESS",
    "facade/flows/quality/simulator.py": "bytes",
    "facade/flows/tables/content.py": "MHz",
    "facade/flows/tables/simulator/cli.py": "bytes",
    "facade/flows/logs/export.py": "nanoseconds of OTLP",
    "devices/mirror.py": "Tango's seconds and microseconds",
    "clients/": "milliseconds for people, from Tango's seconds",
}
"""Files with a factor of a thousand or a million, and what it is for."""


def factors(file: Path) -> Iterator[str]:
    """Return the lines that multiply or divide by a thousand or a million."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div | ast.FloorDiv):
            sides = [node.right] if not isinstance(node.op, ast.Mult) else [node.left, node.right]
            if any(isinstance(side, ast.Constant) and side.value in (1000, 1_000_000) for side in sides):
                yield f"{file.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"


@pytest.mark.needs("repository")
def test_no_module_converts_a_time_by_itself() -> None:
    files = [file for top in ("facade", "devices", "clients", "sdp_facade_sdk") for file in (ROOT / top).rglob("*.py")]
    found = [line for file in files for line in factors(file)]
    assert [line for line in found if not line.startswith(tuple(OTHERS))] == [], "use as_seconds, as_time, from_ms ..."
    assert [one for one in OTHERS if not any(line.startswith(one) for line in found)] == [], "these need no entry"


@given(st.integers(0, 2**53 - 1))
def test_milliseconds_and_seconds_come_back(time: int) -> None:
    assert to_ms(from_ms(time // 1000)) == time // 1000
    assert abs(as_time(as_seconds(time)) - time) <= 1
    assert as_duration(as_seconds(time % 10**12)) == time % 10**12


def test_times_for_people() -> None:
    clock = ManualClock(1_800_000_000.25)
    assert clock.now_us() == 1_800_000_000_250_000
    assert utc_text(clock.now_us()) == "2027-01-15T08:00:00.250+00:00"
    assert utc_seconds(clock.now_us()) == "2027-01-15 08:00:00 UTC"


@pytest.mark.parametrize("seconds", [float("inf"), float("nan")])
def test_a_length_without_an_end_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match=f"expected a finite number of seconds, got {seconds}"):
        as_duration(seconds)

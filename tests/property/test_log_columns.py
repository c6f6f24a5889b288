"""Messages of syslog that are taken together are counted as if they were taken one by one."""

from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from facade.flows.logs import lines
from facade.flows.logs.formats import decode
from facade.flows.logs.lines import syslog_columns, syslog_message
from facade.flows.logs.records import LogRecord, LogSource
from facade.flows.logs.sums import LogSums, summaries
from facade.kernel.bus.port import OffsetRange
from facade.kernel.outcome import RecordRejected, Suppressed

APPENDED = 1_795_520_801_500_000
TIMES = (
    "2026-11-24T12:00:01.500000+00:00",
    "2026-11-24T12:00:01.499999Z",
    "2026-11-24T14:00:00.000001+02:00",
    "2026-11-24T11:00:00.000001",
    "2026-11-24T12:00:01Z",
    "2026-11-24T12:00:01.5+00:00",
    "2026-11-24T12:00:01.1234567Z",
    "2026-13-24T12:00:01.123456Z",
    "1969-11-24T12:00:01.123456Z",
    "2026-11-24T12:00:01.123456.5",
    "-",
    "",
)
DATA = (
    '[meta sequenceId="{}"]',
    '[meta sequenceId="{}" rack="r01"]',
    '[meta sequenceId="{}" eb_id="eb-t0001-20261124-00001"][x y="z"]',
    '[meta sequenceId="{}" x="a\\"\\] b"]',
    '[meta sequenceId="{}" x="a] b"]',
    '[meta sequenceId="{}"',
    "-",
    '- [meta sequenceId="{}"]',
)
NUMBERS = st.integers(0, 6).map(str) | st.sampled_from(["", "x", "1_0", "007", "9" * 30])
SKA = "1|2026-11-24T12:00:00.000Z|ERROR|t|f|m.py#1||inner"
BODIES = st.sampled_from(["text", "", "a ] b", "\ufefftext", SKA, f"\ufeff{SKA}", "\u00e9\n"])


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    priority = draw(st.sampled_from(["<134>1", "<131>1", "<999>1", "<1", "x"]))
    host, component = draw(st.sampled_from(["n0", "n1", "-", ""])), draw(st.sampled_from(["a", "b", "c" * 60, "-"]))
    data = draw(st.sampled_from(DATA)).format(draw(NUMBERS))
    fields = [priority, draw(st.sampled_from(TIMES)), host, component, draw(st.sampled_from(["1", "-", ""])), "-", data]
    return " ".join([*fields, draw(BODIES)]).encode() + draw(st.sampled_from([b"", b"\xff"]))


def usual(number: int, priority: int = 134) -> bytes:
    return f'<{priority}>1 {TIMES[0]} n{number % 2} a 1 - [meta sequenceId="{number // 2 + 1}"] text {number}'.encode()


def one_by_one(values: list[bytes | None]) -> LogSums:
    made = LogSums()
    for value in values:
        rows = decode("logs", value)[1]
        if not isinstance(rows, RecordRejected | Suppressed):
            for row in rows:
                assert isinstance(row, LogRecord)
                made.add(row, APPENDED)
    return made


def together(values: list[bytes | None]) -> tuple[LogSums, int]:
    """Count what columns take, then the rest one by one, as a worker does; return also how many columns took."""
    found = syslog_columns(values)
    if found is None:
        return one_by_one(values), 0
    made = one_by_one([])
    appended = found.time * 0 + APPENDED
    made.add_columns(found, appended, lambda row: syslog_message(values[found.row[row]] or b"").body)
    for at, value in enumerate(values):
        rows = decode("logs", value)[1] if at not in found.row else []
        for row in rows if isinstance(rows, list) else []:
            assert isinstance(row, LogRecord)
            made.add(row, APPENDED)
    return made, len(found.row)


def said(made: LogSums) -> dict[str, Any]:
    """Return what does not depend on the order in which sources came."""
    (summary,) = summaries(made, "w", "logs", 0, OffsetRange("x", 0, 1), 10**9)
    counts = sorted(map(msgspec.json.encode, summary.counts))
    numbers = {one.shipper: {n for run in one.runs for n in range(run[0], run[1] + 1)} for one in summary.sequences}
    return {"counts": counts, "merged": summary.merged, "numbers": numbers, "errors": len(summary.errors)}


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "FEWEST", 1)


@given(st.lists(messages() | st.none() | st.just(b""), max_size=12))
@example([usual(number) for number in range(8)])
@example([usual(0), usual(1).replace(b".500000", b"")])
@example([usual(0), usual(1).replace(b'"1"', b'"\xff"'), usual(2).replace(b".500000", b".50\xff000"), usual(3)])
@example([usual(0).replace(b"n0", b"n\xff"), usual(1).replace(b"00:00", b"\xff0:00")])
def test_together_is_as_one_by_one(values: list[bytes | None]) -> None:
    lines.FEWEST, before = 1, lines.FEWEST
    try:
        assert said(together(values)[0]) == said(one_by_one(values))
    finally:
        lines.FEWEST = before


def test_usual_messages_are_taken_together_in_every_detail() -> None:
    values: list[bytes | None] = [usual(number, 131 if number % 3 else 134) for number in range(200)]
    made, taken = together(values)
    assert taken == 200
    span = OffsetRange("x", 0, 1)
    (found,), (wanted,) = (summaries(one, "w", "logs", 0, span, 10**9) for one in (made, one_by_one(values)))
    assert (found.errors, found.sequences, found.merged) == (wanted.errors, wanted.sequences, wanted.merged)
    assert sorted(map(str, found.counts)) == sorted(map(str, wanted.counts))


def test_the_source_is_that_of_the_message(monkeypatch: pytest.MonkeyPatch) -> None:
    found = syslog_columns([usual(0), usual(1)])
    assert found is not None
    assert [(one.component, one.host) for one in found.sources] == [("a", "n0"), ("a", "n1")]
    assert all(isinstance(one, LogSource) for one in found.sources)
    monkeypatch.setattr(lines, "pa", None)
    assert syslog_columns([usual(0)]) is None, "without pyarrow each is taken alone"

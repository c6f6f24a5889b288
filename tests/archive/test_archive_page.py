"""The queries of the pages about the archive and the history, as DuckDB answers them."""

import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb

from facade.archive.recording import HISTORY, HistoryRecorder
from facade.archive.stores import FolderStore
from facade.kernel.bus.memory import MemoryBus, MemoryLog
from facade.kernel.clock import ManualClock
from facade.kernel.reading import Quality, Reading
from tests.support.archives import HOUR, START, archive, record

PAGES = Path(__file__).parents[2] / "docs" / "how-to"
NIGHT = START - 5 * HOUR + 11 * 60_000_000
"""03:11 of the page's night [Unix us]."""


def answers(page: str, folder: Path) -> list[list[tuple[Any, ...]]]:
    """Return the answers to the queries of a page, about the archive in a folder."""
    queries = re.findall(r"```sql\n(.*?)```", (PAGES / page).read_text(), re.DOTALL)
    database = duckdb.connect()
    database.execute("SET TimeZone = 'UTC'")
    return [database.sql(one.replace("/data/archive", str(folder))).fetchall() for one in queries]


def test_duckdb_answers_the_queries_of_the_page(tmp_path: Path) -> None:
    log = MemoryLog({"alerts": 1, "state": 1})
    log.append(record(NIGHT, b'{"condition":"streamSilent","text":"nothing came","raised_at":1}'))
    for time, state in ((NIGHT - HOUR, b"OFF"), (NIGHT, b"ON"), (NIGHT + HOUR, b"FAULT")):
        log.append(record(time, state, "state"))
    archive(log, FolderStore(tmp_path), "alerts", "state")

    topics, alerts, states, files = answers("archive.md", tmp_path)
    assert [(topic, count) for topic, count, *_ in topics] == [("alerts", 1), ("state", 3)]
    at = datetime.fromtimestamp(NIGHT / 1e6, UTC)
    assert [(time.astimezone(UTC), *rest) for time, *rest in alerts] == [(at, "streamSilent", "nothing came")]
    assert states == [("k", "ON")]
    assert sorted((first, after) for _, first, after in files) == [("0", "1"), ("0", "1"), ("1", "2"), ("2", "3")]


def test_duckdb_answers_the_queries_about_the_history(tmp_path: Path) -> None:
    log, clock = MemoryLog({HISTORY: 1}), ManualClock()
    recorder = HistoryRecorder(MemoryBus(log), clock)
    values = {"0001/heapRate": (1.5, 2.5), "0001/packetLossFraction": (0.25, 0.5), "0002/packetLossFraction": (0.0,)}
    for name, readings in values.items():
        device, _, attribute = f"mid-sdp/ingest/{name}".rpartition("/")
        for count, value in enumerate(readings):
            quality = Quality.ALARM if count else Quality.VALID
            recorder.put(device, attribute, Reading(value, NIGHT + count * 1_000_000, quality))
    written = log.records(HISTORY)
    log = MemoryLog({HISTORY: 1})
    for one in written:
        log.append(replace(one, timestamp_us=NIGHT + one.offset * 1000))
    archive(log, FolderStore(tmp_path), HISTORY)
    rates, losses = answers("history.md", tmp_path)
    assert [(time.timestamp() * 1e6, *rest) for time, *rest in rates] == [
        (NIGHT, "1.5", "VALID"),
        (NIGHT + 1e6, "2.5", "ALARM"),
    ]
    assert losses == [("mid-sdp/ingest/0001", 0.5), ("mid-sdp/ingest/0002", 0.0)]

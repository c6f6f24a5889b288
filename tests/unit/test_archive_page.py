"""The queries of the page about the archive, as DuckDB answers them."""

import re
from datetime import UTC, datetime
from pathlib import Path

import duckdb

from facade.bus.memory import MemoryLog
from facade.flows.archive.stores import FolderStore
from tests.support.archives import HOUR, START, archive, record

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "archive.md"
QUERIES = re.findall(r"```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)
NIGHT = START - 5 * HOUR + 11 * 60_000_000
"""03:11 of the page's night [Unix us]."""


def test_duckdb_answers_the_queries_of_the_page(tmp_path: Path) -> None:
    log = MemoryLog({"alerts": 1, "state": 1})
    log.append(record(NIGHT, b'{"condition":"streamSilent","text":"nothing came","raised_at":1}'))
    for time, state in ((NIGHT - HOUR, b"OFF"), (NIGHT, b"ON"), (NIGHT + HOUR, b"FAULT")):
        log.append(record(time, state, "state"))
    archive(log, FolderStore(tmp_path), "alerts", "state")

    database = duckdb.connect()
    database.execute("SET TimeZone = 'UTC'")
    answers = [database.sql(one.replace("/data/archive", str(tmp_path))).fetchall() for one in QUERIES]
    topics, alerts, states, files = answers
    assert [(topic, count) for topic, count, *_ in topics] == [("alerts", 1), ("state", 3)]
    at = datetime.fromtimestamp(NIGHT / 1e6, UTC)
    assert [(time.astimezone(UTC), *rest) for time, *rest in alerts] == [(at, "streamSilent", "nothing came")]
    assert states == [("k", "ON")]
    assert sorted((first, after) for _, first, after in files) == [("0", "1"), ("0", "1"), ("1", "2"), ("2", "3")]

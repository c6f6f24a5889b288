"""What a run with a finding leaves behind, so that its cause can be found afterwards.

Its folder is kept: the logs of all processes, and the data of the brokers. Beside them, the records of the topics that
decide are text, also those of transactions that were aborted.
"""

import json
import shutil
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from facade.kernel.bus.kafka.admin import find_range
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.kafka.read_range import read_range
from facade.kernel.bus.port import Record

_LONGEST = 400
"""Part of a record that is written as text [characters]."""
_WITHIN = 120.0


def records(connection: Connection, topic: str, *, committed: bool = True) -> Iterator[Record]:
    """Return the records that are on a topic now."""
    return read_range(connection, topic, find_range(connection, topic), committed=committed, within=_WITHIN)


def keep(connection: Connection, folder: Path, topics: Collection[str], to: Path) -> None:
    """Copy the folder of a run, and write the records of some topics beside it."""
    # Indexes of logs are 20 MB for each partition, and brokers make them again from the logs.
    ignore = shutil.ignore_patterns("*.sock", "*.index", "*.timeindex")
    with suppress(shutil.Error):  # processes that run remove files of theirs
        shutil.copytree(folder, to, ignore=ignore, dirs_exist_ok=True)
    for topic in topics:
        seen = {(one.partition, one.offset) for one in records(connection, topic)}
        with (to / f"{topic}.jsonl").open("w") as file:
            for one in records(connection, topic, committed=False):
                key, value = ((text or b"").decode(errors="replace")[:_LONGEST] for text in (one.key, one.value))
                headers = {name: text.decode(errors="replace") for name, text in one.headers}
                is_committed = (one.partition, one.offset) in seen
                line = [one.partition, one.offset, one.timestamp_us, is_committed, key, headers, value]
                file.write(json.dumps(line) + "\n")

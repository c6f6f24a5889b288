"""What a run with a finding leaves behind, so that its cause can be found afterwards.

Its folder is kept: the logs of all processes, and the data of the brokers. Beside them, the records of the topics that
decide are text, also those of transactions that were aborted.
"""

import json
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from facade.kernel.bus.kafka.admin import find_range
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.kafka.read_range import read_range
from facade.kernel.bus.offsets import CountedOffsets
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


def unjoined(results: Iterable[Record]) -> Iterator[str]:
    """Return where the ranges of offsets in accounts or summaries do not join, or have fewer records than offsets."""
    counted: dict[tuple[object, ...], CountedOffsets] = {}
    for record in results:
        one = json.loads(record.value or b"{}")
        if one.get("offset_to", -1) < 0:
            continue  # a watermark, a mark, or an account without a partition
        # Messages leave out what has its default value.
        first, after, stream = one.get("offset_from", 0), one["offset_to"], one.get("stream", record.topic)
        place = record.topic, stream, one["partition"], record.key
        where = f"{record.topic}, partition {record.partition}, offset {record.offset}: {stream}/{one['partition']}"
        taken = counted.setdefault(place, CountedOffsets())
        if found := taken.take(one.get("log", ""), first, after, one.get("part", 0), counts=after > first):
            yield f"{where}: offsets {first} to {after - 1}: {found}"
        if "consumed" in one and not one.get("batches") and one["consumed"] != after - first:
            yield f"{where}: offsets {first} to {after - 1} have {one['consumed']} records"


def missing(seen: Mapping[int, Iterable[int]], sent: Mapping[int, int]) -> Iterator[str]:
    """Return which numbers from 0 on are missing, as ranges.

    Parameters
    ----------
    seen
        The numbers that are there, by node.
    sent
        How many there should be.
    """
    for node, count in sent.items():
        for before, after in pairwise([-1, *sorted(seen.get(node, ())), count]):
            if after > before + 1:
                yield f"node {node}: numbers {before + 1} to {after - 1}"

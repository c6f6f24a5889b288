"""The producer of a fault run: sends table after table, and writes down what it has begun and what is surely sent."""

import hashlib
import os
import random
from pathlib import Path

from facade.bus.kafka.bus import KafkaBus
from facade.bus.kafka.connection import Connection
from facade.errors import BusError
from facade.flows.tables.producer import TableProducer
from proving.roles import RoleContext

KIND, CONTENT_TYPE = "sky-model", "application/x-table-fault"
_SEGMENT = 100_000
_PAUSE = 0.5
_EACH = 1.0
"""From one table to the next [s]: there is to be time for faults."""


def content(seed: int, number: int, size: int) -> bytes:
    """Return the bytes of a table."""
    return random.Random(seed * 1_000_003 + number).randbytes(size)  # noqa: S311 - the same bytes each time


def digest(seed: int, number: int, size: int) -> str:
    """Return the SHA-256 of a table."""
    return hashlib.sha256(content(seed, number, size)).hexdigest()


def product(number: int) -> str:
    """Return what a table is a version of: each one something else, so that none hides another."""
    return f"subarray/01/fault-{number:04d}"


def read_journal(file: Path) -> tuple[set[int], set[int]]:
    """Return the tables that were begun, and those of which every segment is surely on the bus."""
    words = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
    begun, sent = ({int(word[1]) for word in words if word[0] == kind} for kind in ("begun", "sent"))
    return begun, sent


def produce_tables(context: RoleContext, *, journal: str, seed: int, tables: int, size: int) -> None:
    """Send; what an earlier life had begun is left as it is."""
    file, clock = Path(journal), context.clock
    producer = TableProducer(KafkaBus(Connection(context.settings, clock=clock), client="producer").writer(), clock)
    with file.open("a") as lines:

        def note(what: str, number: int) -> None:
            lines.write(f"{what} {number}\n")
            lines.flush()
            os.fsync(lines.fileno())

        for number in range(max(read_journal(file)[0], default=-1) + 1, tables):
            note("begun", number)
            made = content(seed, number, size)
            while True:
                try:
                    producer.send(product(number), KIND, made, CONTENT_TYPE, table=f"t{number}", segment=_SEGMENT)
                except BusError:  # what had arrived is known as a duplicate
                    clock.sleep(_PAUSE)
                else:
                    break
            note("sent", number)
            clock.sleep(_EACH)

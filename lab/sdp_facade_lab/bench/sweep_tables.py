"""The tables of the sweep, beside the papers' figures, as `docs` has them.

What a paper did otherwise stands in the head of its column, or in the cell.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from sdp_facade_lab.bench.report import MEGA

if TYPE_CHECKING:
    from sdp_facade_lab.bench.sweep import SweepResult

Columns = Mapping[str, Callable[["SweepResult"], str]]
"""Head of each column, and the function that makes its cell of a result."""

_SEGMENTED = 100e6
"""Size of the object that is sent in segments [bytes]."""


def figure(number: float) -> str:
    """Return three digits of a number: 1,360,000 or 3.42."""
    return f"{float(f'{number:.3g}'):,.12g}"


def _size(found: "SweepResult") -> str:
    size = found.row.size
    unit = next(((name, factor) for name, factor in (("MB", MEGA), ("kB", 1_000)) if not size % factor), ("B", 1))
    return f"{size // unit[1]:,} {unit[0]}"


def _paper(place: int) -> Callable[["SweepResult"], str]:
    return lambda found: figure(found.row.paper[place]) if len(found.row.paper) > place else ""


def _delay(place: int) -> Callable[["SweepResult"], str]:
    return lambda found: figure(found.delays[place]) if found.delays else ""


def _producers(found: "SweepResult") -> str:
    more = found.row.paper_producers
    return f"{found.row.producers} (paper: {more})" if more else str(found.row.producers)


_IN: Columns = {"in [/s]": lambda found: figure(found.sent)}
_OUT: Columns = {"out [/s]": lambda found: figure(found.taken)}
_DELAYS: Columns = {f"{name} [ms]": _delay(place) for place, name in enumerate(("p50", "p99", "p99.9"))}
_CPU: Columns = {"processor time of producers and broker [s/GB]": lambda found: figure(found.cpu)}
_STORED: Columns = {"stored [B]": lambda found: figure(found.stored)}
_SIZE: Columns = {"size": _size}
_PARTITIONS: Columns = {"partitions": lambda found: str(found.row.partitions)}
_MEGABYTES: Columns = {
    "in [MB/s]": lambda found: figure(found.sent * found.row.size / MEGA),
    "out [MB/s]": lambda found: figure(found.taken * found.row.size / MEGA),
}

TABLES: Mapping[str, Columns] = {
    "size": {**_SIZE, **_IN, **_OUT, **_MEGABYTES, **_DELAYS},
    "sangrenel": {
        **_SIZE, **_IN, "memo, 3 machines [/s]": _paper(0),
        "p99 of a call [ms]": _delay(1), "memo [ms]": _paper(1),
    },
    "perf-test": {**_SIZE, **_IN, "memo, 3 machines [/s]": _paper(0)},
    "three": {**_SIZE, **_IN, "memo, 3 machines, in [/s]": _paper(0), **_OUT, "memo, out [/s]": _paper(1)},
    "partitions": {**_PARTITIONS, **_IN, **_OUT},
    "producers": {"producers": _producers, **_PARTITIONS, **_IN},
    "codec": {
        "codec": lambda found: found.row.codec + ", unpacked by the broker" * found.row.unpacked,
        **_SIZE, **_MEGABYTES, **_STORED, **_CPU, **_DELAYS,
    },
    "acks": {"`acks`": lambda found: found.row.acks, **_IN, **_DELAYS},
    "linger": {"`linger.ms`": lambda found: f"{found.row.linger:g}", **_IN, **_DELAYS},
    "segments": {
        **_SIZE, **_PARTITIONS,
        "producer [s]": lambda found: figure(_SEGMENTED / found.sent / found.row.size),
        "memo, to an SSD [s]": _paper(0),
        "consumer [s]": lambda found: figure(_SEGMENTED / found.taken / found.row.size),
        "memo, consumer of Python [s]": _paper(1),
    },
    "001": {
        **_SIZE,
        "batch": lambda found: str(found.row.in_batch),
        "producers and consumers": lambda found: "at once" if found.row.both else "apart",
        **_IN, "paper, 3 to 5 brokers, in [/s]": lambda found: _paper(2 * found.row.both)(found),
        **_OUT, "paper, out [/s]": lambda found: _paper(2 * found.row.both + 1)(found),
    },
    "002": {
        "producers": _producers, "groups": lambda found: str(found.row.groups), **_PARTITIONS,
        "all sent after [s]": lambda found: figure(found.row.messages / found.sent),
        "paper, with Avro, 3 brokers [s]": _paper(0),
        "behind [s]": lambda found: figure(found.behind),
        "paper, 10 consumers in a group [s]": _paper(1), **_CPU,
    },
    "004": {
        **_SIZE, **_IN, "paper, to a hard disk, in [/s]": _paper(0), **_OUT, "paper, out [/s]": _paper(1),
    },
}  # fmt: skip


def tables(found: Sequence["SweepResult"]) -> dict[str, str]:
    """Return the table of each series, with the rows that were measured."""
    made = {}
    for series, columns in TABLES.items():
        if rows := [one for one in found if one.row.series == series and not one.failure]:
            cells = [list(columns), ["---"] + ["---:"] * (len(columns) - 1)]
            cells += [[cell(one) for cell in columns.values()] for one in rows]
            made[series] = "\n".join(f"| {' | '.join(line)} |" for line in cells)
    return made

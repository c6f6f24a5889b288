"""The points of the sweep: one axis at a time around a base point, and the pairs that the papers' tables have."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

KB, MB = 1_000, 1_000_000
LARGE = 100 * MB
"""The large message of the memo's Table 3 [bytes]."""
MOST_PROCESSES = 20
"""Of producers; further ones are threads, as a hundred starts of Python take longer than the measurement."""
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_PACKET, _VISIT = 135 * KB, 10_000
"""Size [bytes] and number of the alerts of a visit in DMTN-028."""
_SPLIT_AND_STREAM = ("in", "out", "stream")


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured at once. The defaults are the base point."""

    series: str
    size: int = 256
    """Of a message [bytes]."""
    partitions: int = 1
    producers: int = 1
    """Clients of Kafka, in at most `MOST_PROCESSES` processes."""
    groups: int = 1
    """Consumer groups that read all of it, a process each."""
    members: int = 1
    """Consumers in each group, as threads."""
    codec: str = "none"
    acks: str = "all"
    linger: float = 5.0
    """How long a producer waits for more messages of a batch [ms]; 5 is the client's default."""
    batch: int = 0
    """Most messages in a batch; 0: the client's default of 10,000."""
    batch_bytes: int = 0
    """Largest batch [bytes]; 0: the client's default of 1,000,000."""
    unpacked: bool = False
    """Whether the broker unpacks what comes, as on the topics of the ICD."""
    one_by_one: bool = False
    """Whether a producer sends a message when the one before is acknowledged; its delay is then that of the calls."""
    messages: int = 0
    """Of all producers together; 0: as many as they send in the time."""
    phases: tuple[str, ...] = ("in", "out")
    """``in`` without consumers, ``out`` without producers, ``stream`` with both as fast as they can, ``latency`` with
    both at a steady rate, ``segments`` for large messages in segments of `size`."""


BASE = Point(series="base")


@dataclass(frozen=True, slots=True)
class Timing:
    """How much is measured at each point."""

    seconds: float
    """Of sending as fast as possible."""
    steady: float
    """Of sending at a steady rate [s]."""
    most: int
    """Of one phase, all producers together [bytes]; three messages in any case."""
    large: int
    """Messages of 100 MB for Table 3."""


FULL = Timing(seconds=2.0, steady=5.0, most=400 * MB, large=8)
QUICK = Timing(seconds=0.5, steady=1.0, most=40 * MB, large=2)


def points(*, quick: bool) -> list[Point]:
    """Return the points in the order in which they are measured; quick: only the ends of each series."""
    series = [list(one) for one in _series()]
    if not quick:
        return [point for one in series for point in one]
    small = [[point for point in one if point.size <= 10 * MB and not point.messages] for one in series]
    return [point for one in small for point in (one if len(one) < 3 else (one[0], one[-1]))] + [
        _visit(100, 11, 10, 1_000)
    ]


def _series() -> Iterator[Sequence[Point]]:
    yield _vary(("in", "out", "latency"), "size", "size", (256, KB, 10 * KB, 100 * KB, MB, 10 * MB, LARGE))
    yield _vary(("in", "out"), "partitions", "partitions", (1, 2, 5, 10, 20, 50))
    for partitions in (1, 20):
        counts = (1, 2, 4, 8, 20)
        yield [Point(series="producers", partitions=partitions, producers=n, phases=("in",)) for n in counts]
    for size in (256, MB):
        yield [Point(series="codec", size=size, codec=c, phases=("in", "out", "latency")) for c in CODECS]
    yield [Point(series="codec", codec="lz4", unpacked=True, phases=("in", "out", "latency"))]
    yield _vary(("in", "latency"), "acks", "acks", ("0", "1", "all"))
    yield _vary(("in", "latency"), "linger", "linger", (0.0, 1.0, 5.0, 20.0, 100.0))
    yield [_memo_table_2(size) for size in (256, KB, MB, 10 * MB)]
    yield [_memo_table_2(256, codec="gzip")]
    yield [
        Point(series="perf-test", size=KB, codec="snappy", acks="0"),
        Point(series="perf-test", size=MB, acks="0"),
        Point(series="perf-test", size=10 * MB, acks="0"),
    ]
    yield [Point(series="three", size=100, partitions=6, producers=3, members=3)]
    for partitions, sizes in ((1, (KB, 10 * KB, 100 * KB, MB, 10 * MB)), (20, (100 * KB, MB))):
        yield [Point(series="segments", size=n, partitions=partitions, phases=("segments",)) for n in sizes]
    yield [Point(series="001-size", size=n, batch=20, phases=_SPLIT_AND_STREAM) for n in (8, 16, 32, 64, 128)]
    yield [Point(series="001-batch", size=32, batch=n, phases=_SPLIT_AND_STREAM) for n in (1, 20, 50)]
    yield [
        Point(series="004", size=n, acks="1", batch_bytes=8196 if n < 10_240 else 0) for n in (4, 32, 200, 1024, 10_240)
    ]
    rows = ((1, 2, 1), (10, 2, 1), (100, 2, 1), (10, 4, 1), (10, 6, 1), (10, 11, 1), (100, 11, 10))
    yield [_visit(*row) for row in rows]
    yield [_memo_table_2(LARGE, producers=10)]  # at the end: a broker that has too little memory for it harms no other


def _vary(phases: tuple[str, ...], series: str, field: str, values: Sequence[object]) -> list[Point]:
    return [msgspec.structs.replace(BASE, series=series, phases=phases, **{field: value}) for value in values]


def _memo_table_2(size: int, *, producers: int = 20, codec: str = "snappy") -> Point:
    return Point(
        series="sangrenel",
        size=size,
        partitions=20,
        producers=producers,
        codec=codec,
        acks="1",
        linger=0.0,
        batch=1,
        one_by_one=True,
        phases=("in",),
    )


def _visit(producers: int, groups: int, partitions: int, messages: int = _VISIT) -> Point:
    return Point(
        series="002",
        size=_PACKET,
        partitions=partitions,
        producers=producers,
        groups=groups,
        members=partitions,
        messages=messages,
        phases=("stream",),
    )

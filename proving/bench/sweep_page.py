"""Make the page of the papers' tables, with its plots, from a report of the bench.

``python -m proving.bench.sweep_page .run/bench-report.json`` writes ``docs/explanation/kafka-figures.md`` and its
pictures.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from proving.bench import sweep_papers as papers
from proving.bench.report import Report
from proving.bench.sweep_figures import (
    COMMAND,
    Sweep,
    cpu,
    delays,
    extremes,
    mb,
    mean,
    ms,
    number,
    rate,
    repeats,
    size_text,
)
from proving.bench.sweep_pictures import draw
from proving.bench.sweep_points import BASE, FULL, LARGE, MB, QUICK, Point
from proving.bench.sweep_report import Found

DOCS = Path(__file__).parents[2] / "docs"
_PAGE, _IMAGES = DOCS / "explanation" / "kafka-figures.md", DOCS / "images"


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table of Markdown; all but the first column are figures."""
    lines = ["| " + " | ".join(heads) + " |", "| --- |" + " ---: |" * (len(heads) - 1)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def page(sweep: Sweep) -> str:
    """Return the page."""
    return "\n\n".join([*_head(sweep), *_tables(sweep), *_choice(sweep)]) + "\n"


def _head(sweep: Sweep) -> Iterator[str]:
    report, where = sweep.report, sweep.report.machine
    failed = [one for one in sweep.found if one.failure]
    yield "# Throughput and delay of Kafka, beside the papers' tables"
    yield f"<!-- Made by `python -m proving.bench.sweep_page REPORT` from what `{COMMAND}` has written. -->"
    yield (
        f"This page helps you to choose sizes, codecs, batches and partitions of topics. [What to choose]"
        f"(#what-to-choose) at the end has the rules. All figures of ours are from one run of `{COMMAND}`."
        f" It measured {len(sweep.found)} combinations of settings (*points*), {len(failed)} of which failed."
        f" *Memo* is SDP memo 052; the columns *paper* and *memo* have published figures. These come from other"
        f" machines, so compare only ratios within a column."
    )
    yield (
        f"Measured on {datetime.fromtimestamp(report.began, UTC):%Y-%m-%d}: {where.cores} cores ({where.cpu}),"
        f" {where.memory_gb:.0f} GB, Python {where.python}, confluent-kafka"
        f" {where.versions.get('confluent-kafka', '?')}. Broker, producers and consumers share the cores. There is one"
        f" broker, so `acks=all` waits for one replica. Other work on the machine took {number(_others(sweep))} cores"
        f" meanwhile."
    )
    yield (
        f"The tables vary one setting at a time. All other settings stay at those of the base point: messages of"
        f" {BASE.size} B, one partition, one producer, one consumer, no compression, `acks=all` and `linger.ms`"
        f" {BASE.linger:g}. *In* is the rate of the producers without consumers, *out* the rate of the consumers"
        f" without producers, and *both* the rates of the two at the same time. Delays are measured"
        f" from the call of the producer to the receipt in another process, at 1,000 messages/s or 20 MB/s, whichever"
        f" is less. MB are 1,000,000 bytes."
    )
    pace = QUICK if report.quick else FULL
    yield (
        f"Each rate is that of {pace.seconds:g} s or {pace.most / MB:,.0f} MB, whichever is reached first, and each"
        f" delay that of {pace.steady:g} s; the memo sends for 300 s. So these are rates into the broker's memory, not"
        f" those that a disk can keep up. {_spread(sweep)}"
    )
    for one in failed:
        why = one.failure.splitlines()[-1].strip()
        yield f"The point of the series `{one.point.series}` with {size_text(one.point.size)} failed: `{why}`."


def _spread(sweep: Sweep) -> str:
    """Say how far figures of the same settings differ."""
    parts = []
    for flow, name in {"in": "*in*", "out": "*out*", "stream-in": "*in* of *both*"}.items():
        if rates := repeats(sweep).get(flow):
            worst = max(rates, key=lambda one: max(one) / min(one))
            times = number(max(worst) / min(worst))
            parts.append(f"a factor of {times} for {name} ({number(min(worst))} to {number(max(worst))}/s)")
    return (
        f"Some settings are in several tables and were measured each time. Their figures differ by up to"
        f" {', '.join(parts)}: smaller differences between two rows say nothing."
    )


def _others(sweep: Sweep) -> float:
    """Return how many cores other work took, on average over the points."""
    found = [flow.others for one in sweep.found for name, flow in one.flows.items() if name.endswith("in")]
    return sum(found) / max(len(found), 1)


def _tables(sweep: Sweep) -> Iterator[str]:
    pace = QUICK if sweep.report.quick else FULL
    yield "## Size of a message"
    yield "![Throughput and delay by size](../images/sweep-size.svg)"
    yield table(
        ("size", "in [/s]", "in [MB/s]", "out [/s]", "out [MB/s]", "p50 [ms]", "p99 [ms]", "p99.9 [ms]"),
        (
            [size_text(one.point.size), number(rate(one, "in")), mb(one, "in"), number(rate(one, "out")),
             mb(one, "out"), *delays(one)]
            for one in sweep.series("size")
        ),
    )  # fmt: skip
    yield (
        "The settings of the memo's Table 2: 20 producers (10 for 100 MB), 20 partitions, `acks=1`, batches of one"
        " message. Each producer sends a message when the one before is acknowledged; p99 and *most* are of the time"
        " for a message. The memo has three brokers and two replicas:"
    )
    yield table(
        ("size, codec", "here [/s]", "memo [/s]", "p99 [ms]", "memo", "most [ms]", "memo"),
        (_one_by_one(one) for one in sweep.series("sangrenel")),
    )
    yield (
        "The settings of the memo's section 14.4.3, in batches of the client's choice (`acks=0`; snappy for 1 kB)."
        " Without acknowledgements a rate is that of handing messages over. The memo's mean delays are those of a full"
        " queue, and have no counterpart here:"
    )
    yield table(
        ("size", "here [/s]", "memo [/s]", "memo, mean delay"),
        (
            [size_text(one.point.size), number(rate(one, "in")), *papers.MEMO_PERF_TEST.get(one.point.size, ("", ""))]
            for one in sweep.series("perf-test")
        ),
    )
    yield "## Partitions and producers"
    yield "![Throughput by partitions and producers](../images/sweep-partitions.svg)"
    yield table(
        ("partitions", "in [/s]", "out [/s]", "broker's memory [MB]"),
        (
            [one.point.partitions, number(rate(one, "in")), number(rate(one, "out")),
             number(one.flows["in"].broker_mb)]
            for one in sweep.series("partitions")
        ),
    )  # fmt: skip
    counts = sorted({one.point.producers for one in sweep.series("producers")})
    yield table(
        ("producers", "1 partition: in [/s]", "20 partitions: in [/s]"),
        (
            [n, *(number(rate(sweep.one("producers", producers=n, partitions=p), "in")) for p in (1, 20))]
            for n in counts
        ),
    )
    three = sweep.one("three")
    yield (
        f"Three producers send {number(rate(three, 'in'))} messages/s of {three.point.size} B to six partitions, and"
        f" three consumers of one group, threads of one process, receive {number(rate(three, 'out'))}/s. The memo"
        f" (14.2) has {papers.MEMO_THREE[0]:,}/s and {papers.MEMO_THREE[1]:,}/s with three machines each."
    )
    yield "## Compression"
    yield "![What codecs cost and save](../images/sweep-codec.svg)"
    yield table(
        (
            "codec",
            "in [MB/s]",
            "out [MB/s]",
            "stored [B]",
            "processor time [s/GB]",
            "p50 [ms]",
            "p99 [ms]",
            "p99.9 [ms]",
        ),
        (
            [_codec(one), mb(one, "in"), mb(one, "out"), number(one.stored), cpu(one, "in"), *delays(one)]
            for one in sweep.series("codec")
        ),
    )
    yield "## Acknowledgements and batches"
    heads = ("in [/s]", "p50 [ms]", "p99 [ms]", "p99.9 [ms]")
    yield table(
        ("`acks`", *heads),
        ([one.point.acks, number(rate(one, "in")), *delays(one)] for one in sweep.series("acks")),
    )
    yield table(
        ("`linger.ms`", *heads),
        ([f"{one.point.linger:g}", number(rate(one, "in")), *delays(one)] for one in sweep.series("linger")),
    )
    yield (
        "Paper 001 (*Redesigning Kafka Message Queue System*, which compares a new broker with Kafka) sends messages"
        " of 8 to 128 B in batches of 20, and of 32 B in batches of 1 to 50:"
    )
    yield table(
        ("size, batch", "in [/s]", "paper", "out [/s]", "paper", "both: in [/s]", "paper", "both: out [/s]", "paper"),
        [
            *(
                _brokers(one, f"{one.point.size} B, 20", papers.BROKERS_SIZE[one.point.size])
                for one in sweep.series("001-size")
            ),
            *(
                _brokers(one, f"32 B, {one.point.batch}", papers.BROKERS_BATCH[one.point.batch])
                for one in sweep.series("001-batch")
            ),
        ],
    )
    yield (
        "Paper 004 (SocketPro and Kafka) sends batches of 8,196 B with `acks=1`, for 1,000,000 to 200,000,000 messages."
        " Its clients are in Java. Here a consumer in Python needs some microseconds for each message, however small,"
        " which limits *out* for 4 and 32 B:"
    )
    yield table(
        ("size", "in [/s]", "paper", "out [/s]", "paper"),
        (
            [size_text(one.point.size), number(rate(one, "in")), f"{papers.QUEUES[one.point.size][0]:,}",
             number(rate(one, "out")), f"{papers.QUEUES[one.point.size][1]:,}"]
            for one in sweep.series("004")
        ),
    )  # fmt: skip
    yield "## Large messages in segments"
    yield "![100 MB in segments](../images/sweep-segments.svg)"
    yield (
        f"Mean time for 100 MB, with the least and the most of {pace.large}, beside the mean of the memo's Table 3 [s]:"
    )
    yield table(
        ("segment", "partitions", "producer", "least, most", "memo", "consumer", "least, most", "memo"),
        (
            [size_text(one.point.size), one.point.partitions, mean(one.large["in"]), extremes(one.large["in"]),
             _memo(one.point, 0), mean(one.large["out"]), extremes(one.large["out"]), _memo(one.point, 1)]
            for one in sweep.series("segments")
        ),
    )  # fmt: skip
    yield "## The alerts of a visit"
    yield (
        f"A *visit* is one pointing of the LSST telescope. DMTN-028 (paper 002, a benchmark of LSST) sends its 10,000"
        f" alerts of 135 kB every 39 s, for up to 1,000 visits. Here"
        f" {max(one.point.messages for one in sweep.series('002')):,} are sent once, as fast as possible, and are not"
        f" encoded: the paper's producers spend most of their time on Avro. With 10 partitions each group has 10"
        f" consumers, as in the paper. *Behind* is the time from the last alert sent until every group has all of them."
        f" *Clients* and *broker* are processor times."
    )
    yield table(
        ("producers, groups, partitions", "all sent after [s]", "paper", "behind [s]", "paper",
         "clients [s]", "broker [s]", "largest client [MB]"),
        (_visit(one) for one in sweep.series("002") if "stream-in" in one.flows),
    )  # fmt: skip


def _codec(found: Found) -> str:
    text = f"{found.point.codec}, {size_text(found.point.size)}"
    return f"{text}, unpacked by the broker" if found.point.unpacked else text


def _one_by_one(found: Found) -> list[str]:
    memo = papers.MEMO_TABLE_2[found.point.size] if found.point.codec == "snappy" else ("", "", "")
    times = ("", "") if found.delay is None else (ms(found.delay.p99), ms(found.delay.highest))
    name = f"{size_text(found.point.size)}, {found.point.codec}"
    return [name, number(rate(found, "in")), memo[0], times[0], memo[1], times[1], memo[2]]


def _brokers(found: Found, name: str, paper: Sequence[int]) -> list[str]:
    cells = [name]
    for flow, figure in zip(("in", "out", "stream-in", "stream-out"), paper, strict=True):
        cells += [number(rate(found, flow)), f"{figure:,}"]
    return cells


def _memo(point: Point, side: int) -> str:
    known = papers.MEMO_TABLE_3.get((point.size, point.partitions))
    return f"{known[side]:g}" if known else ""


def _visit(found: Found) -> list[str]:
    point, sent, taken = found.point, found.flows["stream-in"], found.flows["stream-out"]
    key = (point.producers, point.groups, point.partitions)
    paper = ["" if one is None else f"{one:g}" for one in papers.VISITS.get(key, (None, None))]
    return [
        ", ".join(map(str, key)), number(sent.seconds), paper[0], number(found.behind), paper[1],
        number(sent.cpu + taken.cpu), number(taken.broker_cpu), number(max(sent.peak_mb, taken.peak_mb)),
    ]  # fmt: skip


def _choice(sweep: Sweep) -> Iterator[str]:
    """Say what to choose; each rule with the figures that it comes from."""
    size, parts = sweep.series("size"), sweep.series("partitions")
    best = max(size, key=lambda one: rate(one, "in") * one.point.size)
    small = sweep.one("size", size=256)
    lone, many = sweep.one("001-batch", batch=1), sweep.one("001-batch", batch=50)
    plain, packed = (sweep.one("codec", codec=name, size=256, unpacked=False) for name in ("none", "lz4"))
    gzip, unpacked = sweep.one("codec", codec="gzip", size=256), sweep.one("codec", unpacked=True)
    segments = sweep.series("segments", partitions=1)
    quickest = min(segments, key=lambda one: float(mean(one.large["in"])) + float(mean(one.large["out"])))
    large, spread = (sweep.one("segments", size=MB, partitions=count) for count in (1, 20))
    rates = [rate(one, "out") for one in parts]
    least, most = (choose(parts, key=lambda one: rate(one, "out")) for choose in (min, max))
    none, everyone = sweep.one("acks", acks="0"), sweep.one("acks", acks="all")
    short, long = sweep.one("linger", linger=0.0), sweep.one("linger", linger=100.0)
    yield "## What to choose"
    yield "\n".join(
        f"{n}. {text}"
        for n, text in enumerate(
            (
                f"**Put small messages together.** Kafka takes {mb(small, 'in')} MB/s of messages of 256 B, and"
                f" {mb(best, 'in')} MB/s of {size_text(best.point.size)}. Batches of one message reach"
                f" {number(rate(lone, 'in'))}/s, batches of 50 reach {number(rate(many, 'in'))}/s. Where a producer has"
                f" many small values at once, use a [columnar batch](../how-to/send-heaps.md).",
                f"**Leave `linger.ms` at 5, and use 0 for commands.** With 0 the p99 is {delays(short)[1]} ms, and"
                f" Kafka takes {number(rate(short, 'in'))}/s. With 100 the median is {delays(long)[0]} ms.",
                f"**Keep `acks=all`.** It reaches {number(rate(everyone, 'in'))}/s with a p99 of"
                f" {delays(everyone)[1]} ms, `acks=0` {number(rate(none, 'in'))}/s with {delays(none)[1]} ms: with one"
                f" broker the difference is within the spread. With three, `acks=all` also waits for other replicas,"
                f" which was not measured.",
                f"**Compress with lz4 if the network or the disk is the limit. Otherwise do not compress.** For a"
                f" gigabyte of messages of {packed.point.size} B, lz4 takes {cpu(packed, 'in')} s of processor time,"
                f" no codec {cpu(plain, 'in')} s and gzip {cpu(gzip, 'in')} s. With lz4 the broker stores"
                f" {number(packed.stored)} B for a message, without a codec {number(plain.stored)} B."
                f" These figures are with the topic's `compression.type` set to `producer`. Our topics have"
                f" `uncompressed`, so that a broker's size limit holds for the unpacked batch ([settings]"
                f"(../how-to/run-on-kafka.md)). With this setting the broker unpacks lz4 batches, which takes"
                f" {cpu(unpacked, 'in')} s: with our topics, lz4 saves the network but not the disk.",
                f"**Take as many partitions as consumers share the work.** With one producer and one consumer their"
                f" number decides little: {number(min(rates))} to {number(max(rates))}/s are read from"
                f" {parts[0].point.partitions} to {parts[-1].point.partitions} partitions, the least from"
                f" {least.point.partitions} and the most from {most.point.partitions}.",
                f"**Send data larger than 1 MB in segments of 10 kB to 1 MB, on one partition.** The least time for"
                f" 100 MB is that of segments of {size_text(quickest.point.size)}, {mean(quickest.large['in'])} s for"
                f" the producer and {mean(quickest.large['out'])} s for the consumer; segments of 1 MB take"
                f" {mean(large.large['in'])} s and {mean(large.large['out'])} s, on 20 partitions"
                f" {mean(spread.large['in'])} s and {mean(spread.large['out'])} s, as the consumer must sort them. The"
                f" memo comes to segments of 1 MB on one partition.",
            ),
            1,
        )
    )
    arrived = max(one.point.size for one in sweep.found if not one.failure)
    yield (
        f"The messages of the sweep repeat themselves as much as notifications do, which favours the codecs. The"
        f" largest single message that arrived has {size_text(arrived)}; the memo's largest has {size_text(LARGE)}."
    )


def main() -> None:
    """Write the page and its pictures."""
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m proving.bench.sweep_page REPORT")
    sweep = Sweep(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Report))
    _PAGE.write_text(page(sweep))
    draw(sweep, _IMAGES)
    sys.stdout.write(f"written: {_PAGE} and four pictures in {_IMAGES}\n")


if __name__ == "__main__":
    main()

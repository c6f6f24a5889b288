"""The report of a night as one HTML page, which needs no network and no script.

It is also for paper and for screen readers: headings, tables with captions and named rows, plots with descriptions and
a table beside each. Lines differ by their dashes, not only by their colours. The template ``page.html`` escapes all
text from the bus.
"""

from collections.abc import Iterator
from operator import attrgetter
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from facade import __version__
from facade.archive.files import advice
from facade.archive.night.html import Plot, cell, length, number, percent
from facade.archive.night.report import NightReport
from facade.archive.night.span import Night, utc
from facade.archive.night.telemetry import RackFigures
from facade.kernel.clock import DAY, Time
from facade.kernel.printable import printable

_NOON_US = DAY // 2
_FIGURES = attrgetter(
    *("consumed", "used", "late", "suppressed", "dead_lettered", "balance", "skipped", "overlap", "redriven")
)


def _harmless(value: object) -> object:
    return value if isinstance(value, Markup) else printable(str(value))


def render(report: NightReport, place: str, written_us: Time) -> str:
    """Return the page."""
    environment = Environment(
        loader=PackageLoader(__name__.rpartition(".")[0], ""),
        autoescape=True,
        finalize=_harmless,
        undefined=StrictUndefined,
    )
    environment.filters["list_values"] = lambda one: [*one.values()]
    environment.globals |= {"cell": cell, "length": length, "number": number, "plot": Plot, "utc": utc}
    return environment.get_template("page.html").render(
        report=report,
        night=report.night,
        title=_title(report.night),
        place=place,
        written_us=written_us,
        version=__version__,
        in_short=[*_in_short(report)],
        racks=[_rack(report, one) for one in report.telemetry.racks],
        streams=[(name, *_FIGURES(stream.account)) for name, stream in report.streams.items()],
        missing=[*_missing(report)],
        advice=advice(place),
        topics=[
            (one.topic, one.records, _at(one.first_us), _at(one.last_us), one.unusable)
            if one.records
            else (one.topic, 0, "", "" if one.is_kept else "no file", 0)
            for one in report.topics.values()
        ],
    )


def _title(night: Night) -> str:
    if night.block:
        return f"Execution block {night.block}"
    if night.begin_us % DAY == _NOON_US and night.end_us - night.begin_us == DAY:
        return f"Night of {utc(night.begin_us)[:10]}"
    return f"{utc(night.begin_us)} to {utc(night.end_us)}"


def _at(at_us: Time) -> str:
    return utc(at_us, fraction=3)


def _in_short(report: NightReport) -> Iterator[tuple[str, str]]:
    racks, topics, value = report.telemetry.racks, report.topics, report.value
    came, missing = (sum(map(attrgetter(name), racks)) for name in ("distinct", "missing"))
    if came + missing:
        share = f"{percent(came / (came + missing), 4)} of {number(came + missing)} sequence numbers came"
        doubled = sum(one.doubled for one in racks)
        yield "Heaps", f"{share}; missing: {number(missing)}; doubled: {number(doubled)}"
    if topics["dead-letters"].is_kept:
        yield "Dead letters", number(value("coalesce(sum(records), 0) FROM dead_letters WHERE NOT is_mark"))
    if topics["alert-state"].is_kept:
        words = (
            "format('{}, on average {} in 10 minutes; {} of the time in flood', number(annunciated), number(average),"
        )
        yield "Alarms", value(f"{words} percent(flood_fraction, 1)) FROM alarm_totals")
    if topics["commands"].records:
        total, open_ = (value(f"count({what}) FROM command_lines") for what in ("*", "nullif(outcome <> 'OPEN', true)"))
        yield "Commands", f"{number(total)}; without an outcome: {number(open_)}"
    if topics["heartbeats"].records:
        total, unsaid = (
            value(f"count(*) FROM events WHERE kind IN ({kinds})") for kinds in ("'restart', 'unsaid'", "'unsaid'")
        )
        yield "Restarts", f"{number(total)}; without an orderly end before: {number(unsaid)}"


def _rack(report: NightReport, rack: RackFigures) -> dict[str, Any]:
    night, telemetry = report.night, report.telemetry
    slots = telemetry.slots(rack) if rack.used else []
    rates = [one.count / night.slot_seconds(at) for at, one in enumerate(slots)]
    middle, high = ([telemetry.quantile(one, q) for one in slots] for q in (0.5, 0.99))
    share, (_, lost, late) = rack.completeness, rack.packets
    begins = (f"{utc(one)[:16]} UTC" for one in night.slots)
    return {
        "name": f"rack-{rack.first}-{rack.last}",
        "title": f"Nodes {_nodes(rack)}",
        "slots": [*zip(begins, (one.count for one in slots), rates, middle, high, strict=False)],
        "rate": {"rate": rates},
        "latency": {"median": middle, "99th percentile": high},
        "figures": {
            "Nodes": _nodes(rack),
            "Used": rack.used,
            "Mean rate [heaps/s]": rack.used / night.seconds,
            "Latency, median [s]": telemetry.latency(rack, 0.5),
            "Latency, 99 % [s]": telemetry.latency(rack, 0.99),
            "Latency, deviation [s]": rack.deviation,
            "Complete": None if share is None else percent(share, 4),
            "Missing": rack.missing,
            "Doubled": rack.doubled,
            "Late": rack.late,
            "Packets lost": lost,
            "Packets late": late,
        },
    }


def _nodes(rack: RackFigures) -> str:
    heard = rack.nodes or {rack.first, rack.last}
    first, last = min(heard), max(heard)
    return f"{first}" if first == last else f"{first} to {last}"


def _missing(report: NightReport) -> Iterator[str]:
    for name, stream in report.streams.items():
        for said in stream.account.deviations.values():
            yield f"{name}: {said}"
    for rack in report.telemetry.racks:
        if rack.missing:
            yield f"Nodes {_nodes(rack)}, heaps that never came or could not be used: {number(rack.missing)}"
        if rack.uncovered:
            yield f"Nodes {_nodes(rack)}, offsets of heaps in no summary of the archive: {number(rack.uncovered)}"
    for topic in report.topics.values():
        if topic.unusable:
            yield f"{topic.topic}, records that could not be used: {number(topic.unusable)}; the first: {topic.example}"
        if not topic.is_kept:
            yield f"{topic.topic}: the archive has no file of the topic"
        for said in topic.missing:
            yield f"{said}; figures may lack these records"
    counts = {
        "Commands without an outcome": "count(*) FROM command_lines WHERE outcome = 'OPEN'",
        "Tables that have not ended": 'coalesce(sum("Not ended"), 0) FROM products',
        "States of alarms with more than 100,000 new occurrences, which count none": "refused FROM alarm_totals",
    }
    yield from (f"{what}: {number(count)}" for what, one in counts.items() if (count := report.value(one)))

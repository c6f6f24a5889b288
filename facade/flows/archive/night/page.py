"""The report of a night as one HTML page, which needs no network and no script.

It is also for paper and for screen readers: headings, tables with captions and named rows, plots with descriptions and
a table beside each. All text from the bus is escaped, see `facade.flows.archive.night.html`.
"""

from collections.abc import Iterable, Iterator
from operator import attrgetter
from statistics import median

from facade import __version__
from facade.flows.archive.files import advice
from facade.flows.archive.night.alarms import FLOOD, LOOKBACK_US, PERIOD_US, STATES
from facade.flows.archive.night.events import ACKS, COMMANDS, HEARTBEATS, OPEN, REFUSALS, NightCommand
from facade.flows.archive.night.html import STYLE, Cell, SvgLine, listed, number, paragraph, percent, plot, table, text
from facade.flows.archive.night.products import DEAD_LETTERS, QUALITY, TABLES
from facade.flows.archive.night.report import NightReport
from facade.flows.archive.night.span import MICRO, Night, utc
from facade.flows.archive.night.telemetry import SUMMARIES, RackFigures
from facade.runtime.accounts import ACCOUNTS

_MOST_COMMANDS = 1000
_NOON_US, _DAY_US = 43_200 * MICRO, 86_400 * MICRO
_UNFINISHED = (
    "This time had not ended when the report was written. Averages and shares of the time are over the whole of it."
)
_FIGURES = attrgetter(
    *("consumed", "used", "late", "suppressed", "dead_lettered", "balance", "skipped", "overlap", "redriven")
)
_CAN_HAVE = "default-src 'none'; style-src 'unsafe-inline'"


def title_of(night: Night) -> str:
    """Return the title of a report."""
    if night.begin_us % _DAY_US == _NOON_US and night.end_us - night.begin_us == _DAY_US:
        return f"Night of {utc(night.begin_us)[:10]}"
    return f"{utc(night.begin_us)} to {utc(night.end_us)}"


def render(report: NightReport, place: str, written_us: int) -> str:
    """Return the page."""
    night, title = report.night, title_of(report.night)
    sections = {
        "Heaps by rack": _telemetry(report),
        "Dead letters": _dead_letters(report),
        "Alarms": _alarms(report),
        "Commands": _commands(report),
        "Tables and quality": _products(report),
        "Restarts and silence": _accidents(report),
        "Not accounted for": _unaccounted(report, place),
        "What was read": _read(report),
    }
    names = {one: one.lower().replace(" ", "-") for one in sections}
    contents = "".join(f'<li><a href="#{name}">{text(one)}</a></li>' for one, name in names.items())
    span = (
        f"From {utc(night.begin_us)} to {utc(night.end_us)} ({_length(night.seconds)}), by Kafka's time of each record."
    )
    return "\n".join(
        (
            f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{text(title)}</title>',
            f'<meta http-equiv="Content-Security-Policy" content="{_CAN_HAVE}">',
            '<meta name="viewport" content="width=device-width">',
            f"<style>{STYLE}</style></head><body><main><h1>{text(title)}</h1>",
            paragraph(f"{span} A night lasts from 12:00 UTC to 12:00 UTC of the next day. All times are UTC."),
            *([paragraph(_UNFINISHED, note=True)] if written_us < night.end_us else ()),
            paragraph(f"Archive: {place}. Written at {utc(written_us)} by sdp-facade {__version__}."),
            f'<nav aria-label="Contents"><ul>{contents}</ul></nav>',
            _in_short(report),
            *(_section(one, name, sections[one]) for one, name in names.items()),
            "</main></body></html>\n",
        )
    )


def _section(title: str, name: str, parts: Iterable[str]) -> str:
    inside = "\n".join(parts)
    return f'<section aria-labelledby="{name}"><h2 id="{name}">{text(title)}</h2>\n{inside}</section>'


def _length(seconds: float) -> str:
    hours, rest = divmod(round(seconds), 3600)
    minutes, rest = divmod(rest, 60)
    parts = (f"{count} {unit}" for count, unit in ((hours, "h"), (minutes, "min"), (rest, "s")) if count)
    return " ".join(parts) or "0 s"


def _at(at_us: int) -> str:
    return utc(at_us, fraction=3)


def _has(report: NightReport, topic: str) -> bool:
    return report.topics[topic].records > 0


def _absent(report: NightReport, *topics: str) -> Iterator[str]:
    """Return a note about topics without records: figures from them are unknown."""
    for topic in topics:
        line = report.topics[topic]
        if not line.is_kept:
            yield paragraph(
                f"The topic {topic} was not kept, or had no records: the archive has no file of it.", note=True
            )
        elif not line.records:
            yield paragraph(f"The archive has no records of the topic {topic} of this time.", note=True)


def _in_short(report: NightReport) -> str:
    racks, alarms, lines = report.telemetry.racks, report.alarms, report.commands.lines
    expected = sum(one.distinct + one.missing for one in racks)
    came = sum(one.distinct for one in racks)
    said = {}
    if expected:
        share = f"{percent(came / expected, 4)} of {number(expected)} sequence numbers came"
        doubled = sum(one.doubled for one in racks)
        said["Heaps"] = f"{share}; missing: {number(expected - came)}; doubled: {number(doubled)}"
    if report.topics[DEAD_LETTERS].is_kept:
        said["Dead letters"] = number(sum(one.records for one in report.dead_letters.lines))
    if report.topics[STATES].is_kept:
        flood = f"{percent(alarms.flood_fraction)} of the time in flood"
        said["Alarms"] = f"{number(alarms.annunciated)}, on average {number(alarms.average)} in 10 minutes; {flood}"
    if _has(report, COMMANDS):
        open_ = sum(one.outcome == OPEN for one in lines)
        said["Commands"] = f"{number(len(lines))}; without an outcome: {number(open_)}"
    if _has(report, HEARTBEATS):
        restarts = sum(one.restarts for one in report.components.lines)
        unsaid = sum(one.unsaid for one in report.components.lines)
        said["Restarts"] = f"{number(restarts)}; without an orderly end before: {number(unsaid)}"
    items = "".join(f"<dt>{text(name)}</dt><dd>{text(words)}</dd>" for name, words in said.items())
    return f'<section aria-labelledby="in-short"><h2 id="in-short">In short</h2><dl>{items}</dl></section>'


# Heaps


def _telemetry(report: NightReport) -> Iterator[str]:
    yield from _absent(report, SUMMARIES)
    racks = report.telemetry.racks
    if not racks:
        return
    yield paragraph(
        "Heap notifications of the ingest nodes, as the aggregate workers summed them up. A notification is missing if"
        " its sequence number never came between the lowest and the highest one of its node and scan, and doubled if"
        " its number came again. Late ones came too late for their window: only rate and latency are without them. What"
        " was before the first number of a scan, or after its last one, cannot be known."
    )
    headings = ["Nodes", "Used", "Mean rate [heaps/s]", "Latency, median [s]", "Latency, 99 % [s]"]
    headings += ("Latency, deviation [s]", "Complete", "Missing", "Doubled", "Late", "Packets lost", "Packets late")
    yield table("Heaps of each rack", headings, (_rack_row(report, one) for one in racks))
    for rack in racks:
        if rack.used:
            yield from _rack(report, rack)


def _rack_row(report: NightReport, rack: RackFigures) -> list[Cell]:
    quantiles = (report.telemetry.latency(rack, q) for q in (0.5, 0.99))
    share = rack.completeness
    _, lost, late = rack.packets
    return [
        _nodes(rack),
        rack.used,
        rack.used / report.night.seconds,
        *quantiles,
        rack.deviation,
        None if share is None else percent(share, 4),
        rack.missing,
        rack.doubled,
        rack.late,
        lost,
        late,
    ]


def _nodes(rack: RackFigures) -> str:
    heard = rack.nodes or {rack.first, rack.last}
    first, last = min(heard), max(heard)
    return f"{first}" if first == last else f"{first} to {last}"


def _rack(report: NightReport, rack: RackFigures) -> Iterator[str]:
    night, name = report.night, f"rack-{rack.first}-{rack.last}"
    slots = report.telemetry.slots(rack)
    rates = [one.count / night.slot_seconds(at) for at, one in enumerate(slots)]
    middle, high = ([report.telemetry.quantile(one, q) for one in slots] for q in (0.5, 0.99))
    title = f"Nodes {_nodes(rack)}"
    yield f'<h3>{text(title)}</h3><div class="pair"><div>'
    yield plot(f"{name}-rate", f"{title}: rate of heaps", "heaps/s", [SvgLine("rate", rates)], night)
    latency = [SvgLine("median", middle), SvgLine("99th percentile", high)]
    yield plot(f"{name}-latency", f"{title}: latency of heaps", "s", latency, night)
    yield "</div>"
    rows = zip(map(_slot, night.slots), (one.count for one in slots), rates, middle, high, strict=True)
    headings = ("Slot from", "Used", "Rate [heaps/s]", "Latency, median [s]", "Latency, 99 % [s]")
    yield table(f"{title}: rate and latency of heaps in slots of {_length(night.slot_us / MICRO)}", headings, rows)
    yield "</div>"


def _slot(at_us: int) -> str:
    return f"{utc(at_us)[:16]} UTC"


# Dead letters and alarms


def _dead_letters(report: NightReport) -> Iterator[str]:
    yield from _absent(report, DEAD_LETTERS)
    letters = report.dead_letters
    if letters.lines:
        rows = (
            (
                one.reason,
                one.topic,
                one.records,
                _at(one.first_us),
                _at(one.last_us),
                ", ".join(sorted(one.by)),
                one.example,
            )
            for one in letters.lines
        )
        headings = ("Reason", "Topic", "Records", "First", "Last", "Set aside by", "First example")
        yield table("Records that could not be used, by reason", headings, rows)
    if _has(report, DEAD_LETTERS):
        yield paragraph(f"Dead letters that were put back on their topics: {number(letters.redriven)}.")


def _alarms(report: NightReport) -> Iterator[str]:
    if not report.topics[STATES].is_kept:
        yield from _absent(report, STATES)
        return
    alarms, night = report.alarms, report.night
    yield paragraph(
        "Figures as EEMUA 191 and ISA-18.2 define them. An alarm is a condition and its source. It counts each time"
        " that it is raised or asks for another acknowledgement, unless it is shelved, suppressed by design or out of"
        " service. Periods of 10 minutes follow each other from the start. Alarms that were raised before the night are"
        f" known if the archive has their states of the {LOOKBACK_US // _DAY_US} days before."
    )
    stale, chattering, worst = alarms.stale, alarms.chattering, alarms.worst
    rows: list[tuple[Cell, ...]] = [
        ("Alarms", alarms.annunciated, ""),
        ("Average in 10 minutes", alarms.average, "fewer than 1; at most 2"),
        ("Most in 10 minutes", max(alarms.periods), f"at most {FLOOD}"),
        (f"Time in flood (more than {FLOOD} in 10 minutes)", percent(alarms.flood_fraction), "less than 1 %"),
        ("Stale alarms (active for more than 24 h)", len(stale), "fewer than 5 a day"),
        ("Chattering alarms (3 or more in a minute)", len(chattering), "none"),
        ("Share of the ten most frequent alarms", percent(alarms.worst_fraction), "at most 1 % to 5 %"),
        ("Raised while shelved, suppressed or out of service", alarms.covered, ""),
    ]
    yield table("Performance of the alarm system", ("Figure", "This time", "Recommended"), rows)
    title = "Alarms over the time"
    bars = plot("alarms", title, "alarms", [SvgLine("alarms", alarms.slots)], night, bars=True)
    yield f'<div class="pair"><div>{bars}</div>'
    most = [0] * len(night.slots)
    for at, count in enumerate(alarms.periods):
        slot = night.slot(night.begin_us + at * PERIOD_US)
        most[slot] = max(most[slot], count)
    slots = zip(map(_slot, night.slots), alarms.slots, most, strict=True)
    headings = ("Slot from", "Alarms", "Most in a period of 10 minutes that begins in it")
    yield table(f"{title}, in slots of {_length(night.slot_us / MICRO)}", headings, slots) + "</div>"
    if worst:
        total = alarms.annunciated
        shares = ((one.condition, one.source, one.times, percent(one.times / total)) for one in worst)
        yield table("Most frequent alarms", ("Condition", "Source", "Times", "Share"), shares)
    if chattering:
        most_each = ((one.condition, one.source, one.most) for one in chattering)
        yield table("Chattering alarms", ("Condition", "Source", "Most in a minute"), most_each)
    if stale:
        long = (
            (one.condition, one.source, _at(since), _length((until - since) / MICRO)) for one, since, until in stale
        )
        yield table("Stale alarms", ("Condition", "Source", "Active since", "Active for"), long)


# Commands


def _commands(report: NightReport) -> Iterator[str]:
    yield from _absent(report, COMMANDS, ACKS, REFUSALS)
    lines = report.commands.lines
    if not lines:
        return
    yield paragraph(f"{OPEN}: no outcome came before {utc(report.night.end_us)}. REFUSED: the device refused the call.")
    groups: dict[tuple[str, str], list[NightCommand]] = {}
    for one in lines:
        groups.setdefault((one.command, one.outcome), []).append(one)
    rows = ((*key, len(groups[key]), *_times(groups[key])) for key in sorted(groups))
    headings = ("Command", "Outcome", "Commands", "Median time [s]", "Longest time [s]")
    yield table("Commands by outcome", headings, rows)
    each: Iterable[tuple[Cell, ...]] = (
        (
            *(_at(one.given_us), one.command, one.device, one.by, one.outcome),
            "" if one.seconds is None else one.seconds,
            one.text,
        )
        for one in lines[:_MOST_COMMANDS]
    )
    each_headings = ("Given at", "Command", "Device", "By", "Outcome", "Time [s]", "Text")
    yield table("Commands in the order in which they were given", each_headings, each)
    if len(lines) > _MOST_COMMANDS:
        yield paragraph(f"{number(len(lines) - _MOST_COMMANDS)} later commands are left out of this list.", note=True)


def _times(lines: list[NightCommand]) -> tuple[Cell, Cell]:
    known = [one.seconds for one in lines if one.seconds is not None]
    return (median(known), max(known)) if known else ("", "")


# Tables, quality and components


def _products(report: NightReport) -> Iterator[str]:
    yield from _absent(report, TABLES, QUALITY)
    if products := report.tables.lines:
        rows = (
            (
                one.product,
                one.kind,
                one.complete,
                one.size / 1e6,
                one.slowest,
                one.failed,
                len(one.under_way),
                one.reason,
            )
            for one in products
        )
        headings = (
            "Product",
            "Kind",
            "Complete",
            "Size [MB]",
            "Longest time [s]",
            "Failed",
            "Not ended",
            "Last failure",
        )
        yield table("Tables by product", headings, rows)
    if metrics := report.qualities.lines:
        arrays = (
            (one.metric, one.subarray, one.unit, one.arrays, _at(one.first_us), _at(one.last_us), one.longest_gap)
            for one in metrics
        )
        columns = ("Metric", "Subarray", "Unit", "Arrays", "First", "Last", "Longest gap [s]")
        yield table("Quality metrics", columns, arrays)


def _accidents(report: NightReport) -> Iterator[str]:
    yield from _absent(report, HEARTBEATS)
    components = report.components
    if not components.lines:
        return
    rows = (
        (one.name, one.role, one.restarts, one.unsaid, one.silences, round(one.silent, 1)) for one in components.lines
    )
    headings = ("Component", "Role", "Restarts", "Without an orderly end before", "Silences", "Away or silent [s]")
    yield table("Workers, device servers and controllers", headings, rows)
    if not components.accidents:
        yield paragraph("No component was restarted or silent.")
        return
    each = ((_at(at_us), component, said) for at_us, component, said in components.accidents)
    yield table("Interruptions in the order of time", ("At", "Component", "Interruption"), each)
    if components.left_out:
        yield paragraph(f"{number(components.left_out)} further interruptions are left out of this list.", note=True)


# What is missing


def _unaccounted(report: NightReport, place: str) -> Iterator[str]:
    yield from _absent(report, ACCOUNTS)
    if streams := report.streams:
        rows = ((name, *_FIGURES(stream.account)) for name, stream in streams.items())
        headings = ["Topic", "Taken", "Used", "Late", "Suppressed", "Dead-lettered", "Not accounted for"]
        headings += ("Offsets not taken", "Refused as counted before", "Put back")
        yield table("Records that workers took, and what became of them", headings, rows)
    missing = [*_missing(report)]
    yield listed(missing) if missing else paragraph("Nothing else is missing.")
    if any(topic.missing for topic in report.topics.values()):
        yield paragraph(f"The command {advice(place)}.")


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
    open_ = sum(one.outcome == OPEN for one in report.commands.lines)
    if open_:
        yield f"Commands without an outcome: {number(open_)}"
    under_way = sum(len(one.under_way) for one in report.tables.lines)
    if under_way:
        yield f"Tables that have not ended: {number(under_way)}"


def _read(report: NightReport) -> Iterator[str]:
    rows = (
        (one.topic, one.records, _at(one.first_us), _at(one.last_us), one.unusable)
        if one.records
        else (one.topic, 0, "", "" if one.is_kept else "no file", 0)
        for one in report.topics.values()
    )
    yield table("Records of this time, by topic", ("Topic", "Records", "First", "Last", "Not usable"), rows)

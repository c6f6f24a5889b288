"""The figures of one sweep, by series, and as text."""

from typing import Any

import msgspec

from facade.errors import FacadeError
from proving.bench.report import Report
from proving.bench.sweep_points import MB
from proving.bench.sweep_report import Found, Large

COMMAND = "make bench ARGS='--only sweep'"


class Sweep:
    """The points of one report, by series.

    Raises
    ------
    FacadeError
        The report has no sweep.
    """

    def __init__(self, report: Report) -> None:
        outcomes = [one for one in report.outcomes if one.name == "sweep" and one.figures]
        if not outcomes:
            raise FacadeError(f"expected a report that `{COMMAND}` has written, got one without a sweep")
        self.report = report
        self.found = msgspec.convert(outcomes[0].figures["points"], list[Found])

    def series(self, name: str, **where: Any) -> list[Found]:
        """Return the points of a series that have these values and did not fail.

        Raises
        ------
        FacadeError
            There are none.
        """
        found = [
            one
            for one in self.found
            if one.point.series == name
            and not one.failure
            and all(getattr(one.point, field) == value for field, value in where.items())
        ]
        if not found:
            raise FacadeError(f"expected a whole sweep, got one without the point {name} {where or ''}")
        return found

    def one(self, name: str, **where: Any) -> Found:
        """Return the first of them."""
        return self.series(name, **where)[0]


def repeats(sweep: Sweep) -> dict[str, list[list[float]]]:
    """Return the rates of all points that were measured more than once, by flow: how far they differ is the spread."""
    same: dict[tuple[bytes, str], list[float]] = {}
    for one in sweep.found:
        key = msgspec.json.encode(msgspec.structs.replace(one.point, series="", phases=()))
        for flow, found in one.flows.items():
            if flow != "latency" and not one.failure:
                same.setdefault((key, flow), []).append(found.rate)
    flows: dict[str, list[list[float]]] = {}
    for (_, flow), rates in same.items():
        if len(rates) > 1:
            flows.setdefault(flow, []).append(rates)
    return flows


def size_text(size: int) -> str:
    """Return a size as a person writes it: 256 B, 10 kB, 1 MB."""
    for unit, name in ((MB, "MB"), (1_000, "kB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size:,} B"


def number(value: float) -> str:
    """Return a figure with three digits that matter."""
    if value >= 999.5:
        digits = len(str(int(value))) - 3
        return f"{round(value, -digits):,.0f}"
    return f"{value:.3g}"


def ms(seconds: float) -> str:
    """Return a time in milliseconds."""
    return number(seconds * 1e3)


def rate(found: Found, flow: str) -> float:
    """Return the messages per second of a flow; 0: it was not measured."""
    return found.flows[flow].rate if flow in found.flows else 0.0


def mb(found: Found, flow: str) -> str:
    """Return the throughput of a flow [MB/s]."""
    return number(rate(found, flow) * found.point.size / MB)


def delays(found: Found) -> list[str]:
    """Return p50, p99 and p99.9 [ms]."""
    delay = found.delay
    return ["", "", ""] if delay is None else [ms(delay.p50), ms(delay.p99), ms(delay.p999)]


def cpu(found: Found, flow: str) -> str:
    """Return the processor time of clients and broker for a gigabyte [s]."""
    one = found.flows[flow]
    return number((one.cpu + one.broker_cpu) / max(1e-9, one.messages * found.point.size / 1e9))


def mean(large: Large) -> str:
    """Return the mean time of a large message [s]."""
    return number(sum(large.each) / len(large.each)) if large.each else ""


def extremes(large: Large) -> str:
    """Return the least and the most time of a large message [s]."""
    return f"{number(min(large.each))} to {number(max(large.each))}" if large.each else ""

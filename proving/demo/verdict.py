"""Which limits a demo has kept: of time, of pace, of staleness. The account itself is in `account`."""

from collections.abc import Sequence

from clients.events import Event, Records
from clients.scene import MASTER, NODE
from clients.timing import LASTING, RATE_SLACK
from facade.icd.model import Icd
from facade.reading import Quality
from proving.demo.options import (
    CONTROLLER_RECOVERY,
    DRAINS_WITHIN,
    INVALID_SLACK,
    SERVER_RECOVERY,
    WORKER_RECOVERY,
    DemoOptions,
)
from proving.demo.report import DemoReport
from proving.demo.system import Demo
from proving.demo.timing import (
    Interval,
    event_rates,
    longest_delay,
    notification_latency,
    window_latency,
    without_rereads,
)


def measure(demo: Demo, records: Records) -> None:
    """Put what the events say into the report."""
    report = demo.report
    events = {
        (device, attribute): without_rereads(record.events)
        for device, attributes in records.items()
        for attribute, record in attributes.items()
    }
    nodes = set(demo.tango_side.nodes.values())
    rates = [
        event
        for (device, attribute), of_one in events.items()
        if device in nodes and attribute == "heapRate"
        for event in of_one
        if event.quality is not Quality.INVALID
    ]
    report.notification_latency = notification_latency(rates)
    report.window_latency = window_latency(rates)
    report.window_latency_undisturbed = window_latency(_outside(rates, report.restarts))
    report.pace = event_rates(events, _shortest(demo), report.restarts)


def passed_limits(options: DemoOptions, icd: Icd, report: DemoReport) -> list[str]:
    """Say which limits were passed."""
    patience = max(options.patience, report.slowness)
    stale_after = max(icd.classes[name].stale_after for name in (NODE, MASTER)) + INVALID_SLACK
    if report.drained_after is not None:
        stale_after += max(report.drained_after - INVALID_SLACK, 0.0)  # until then the values were fresh
    limits: list[tuple[str, float | None, float]] = []
    if report.sent is not None or report.drained_after is not None:
        limits += [
            ("everything sent is accounted for", report.drained_after, DRAINS_WITHIN),
            ("silent attributes are ATTR_INVALID", report.invalid_after, stale_after),
        ]
    if options.kills:
        limits += [
            ("the killed worker's output is back", report.worker_recovery, WORKER_RECOVERY),
            ("the killed device server's values are back", report.server_recovery, SERVER_RECOVERY),
            ("the killed alert server's alarms are back", report.alerts_recovery, SERVER_RECOVERY),
        ]
    if options.kills and options.logs:
        limits.append(("the killed log worker's output is back", report.logs_recovery, WORKER_RECOVERY))
    if options.kills and options.mirror and options.controller:
        limits.append(("the killed mirror's receptors are back", report.mirror_recovery, SERVER_RECOVERY))
    if options.kills and options.controller:
        limits += [
            ("the killed subarray server's state is back", report.subarray_recovery, SERVER_RECOVERY),
            ("the killed controller's command has an outcome", report.controller_recovery, CONTROLLER_RECOVERY),
        ]
    times = f" ({patience:.2f} times the limit)" if patience > 1 else ""
    failures = [
        f"{what}: expected within {limit * patience:.1f} s{times}, got {'never' if value is None else f'{value:.2f} s'}"
        for what, value, limit in limits
        if value is None or value > limit * patience
    ]
    return failures + _timing_limits(report, patience, options.patience)


def _timing_limits(report: DemoReport, patience: float, rate_patience: float) -> list[str]:
    found = report.pace
    if report.notification_latency is None:
        return ["events: expected some of heapRate, got none"]
    if found is None:
        return []
    failures = []
    held_up = longest_delay(found, report.window_latency_undisturbed, patience)
    if found.bunch.is_too_close(held_up / found.bunch.shortest):
        failures.append(
            f"events of {found.closest}: expected at least {found.bunch.shortest:g} s from one to the next"
            f" (one may be held up on its way, by {held_up:.2f} s), got {found.bunch}"
        )
    if found.busiest_gaps >= LASTING and found.busiest_rate > found.busiest_limit * RATE_SLACK * rate_patience:
        failures.append(
            f"events of {found.busiest}: expected at most {found.busiest_limit:g}/s, got {found.busiest_rate:.2f}/s"
        )
    return failures


def _shortest(demo: Demo) -> dict[tuple[str, str], float]:
    return {
        (device, entry.name): (entry.sampling or device_class.sampling).shortest
        for name, device_class in demo.icd.classes.items()
        for device in demo.tango_side.devices.get(name, ())
        for entry in device_class.attributes
    }


def _outside(events: Sequence[Event], intervals: Sequence[Interval]) -> list[Event]:
    return [event for event in events if not any(a <= event.received <= b for a, b in intervals)]

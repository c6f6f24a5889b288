"""`sdp-facade simulate alerts`: sources of alerts, floods and chatter, and a night of LSST's."""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import typer

from facade.flows.alerts.packets import PacketCodec
from facade.flows.alerts.simulator.stream import (
    DETECTED,
    AlertMixture,
    AlertReport,
    AlertStream,
    alert_report,
    alert_shape,
)
from facade.kernel.errors import ConfigError
from facade.kernel.icd.load import load
from facade.simulate.sender import Stop
from facade.simulate.sending import (
    Bootstrap,
    Count,
    Prefix,
    ReportFile,
    Seconds,
    Seed,
    deployment,
    fault,
    send,
    sending,
    share,
)

_VISIT, _VISIT_EVERY, _DETECTORS, _PACKET = 10_000, 39.0, 189, 136_000
"""LSST, by DMTN-028: alerts of a visit, time between visits [s], detectors, size of a packet [bytes]."""
_night: Callable[..., Any] = partial(typer.Option, rich_help_panel="A night of LSST's")

EPILOG = """
Examples:

sdp-facade simulate alerts --rate 2
# until Ctrl-C, two alerts/s of ten sources: conditions of the ICD become active, worse, and clear

sdp-facade simulate alerts --burst 10000 --every 10 --count 1000000 --report sent.json
# a million in bursts; sent.json says, source by source and alarm by alarm, what must be found at the other end

sdp-facade simulate alerts --flood --chatter --unknown 0.1 --garbage 0.05
# a bad day: new alarms all the time, one that comes and goes, conditions that nobody knows, and no alerts at all

sdp-facade simulate alerts --night --visits 3
# 10,000 packets of 136 KB at once, three times, 39 s apart; they need an intake worker: sdp-facade alerts intake
"""


def alerts(
    rate: Annotated[float, sending(min=0.001, help="Alerts/s.")] = 1.0,
    burst: Annotated[
        int | None, sending(min=1, help="Number of alerts sent at once, instead of a steady rate.")
    ] = None,
    every: Annotated[float | None, sending(min=0, help="Time between bursts. Default: 10 s.")] = None,
    sources: Annotated[int | None, sending(min=1, help="Number of sources. Default: 10.")] = None,
    condition: Annotated[list[str] | None, sending(help="Repeatable. Default: all of the ICD.")] = None,
    count: Count = None,
    seconds: Seconds = None,
    seed: Seed = 1,
    report: ReportFile = None,
    chatter: Annotated[bool, fault("--chatter", help="Half of it is one alarm that comes and goes.")] = False,
    flood: Annotated[bool, fault("--flood", help="Nothing clears; alarm after alarm is new.")] = False,
    unknown: Annotated[float, share(help="Of conditions that the ICD lacks.")] = 0.0,
    garbage: Annotated[float, share(help="Followed by a record that is none.")] = 0.0,
    night: Annotated[bool, _night("--night", help="Packets: 10,000 of 136 KB each 39 s.")] = False,
    visits: Annotated[int | None, _night(min=1, help="Stop after this many visits or bursts.")] = None,
    size: Annotated[int, _night(min=1, help="Bytes of one packet.")] = _PACKET,
    bootstrap: Bootstrap = None,
    prefix: Prefix = None,
) -> None:
    """Send alerts as SDP's components do, or packets as LSST does.

    The report has the number of alerts of each source, and the last state of each alarm.

    The exit code is 1 if a record was not delivered.
    """
    settings = deployment(bootstrap, prefix)
    icd = load()
    scenario = AlertMixture(
        seed=seed,
        sources=sources or (_DETECTORS if night else 10),
        conditions=tuple(condition or ([DETECTED] if night else icd.conditions)),
        chatter=chatter,
        flood=flood,
        unknown=unknown,
        garbage=garbage,
        packet_size=size if night else 0,
    )
    bursts = _bursts(burst, every, night)
    if visits is not None:
        if bursts is None:
            raise ConfigError("--visits: expected --night or --burst with it, got neither")
        count = min(visits * bursts[0], visits * bursts[0] if count is None else count)
    stream = AlertStream(scenario, PacketCodec(icd) if night else None)
    shape, as_report = alert_shape(stream, rate=rate, bursts=bursts), partial(alert_report, stream)
    stop, client = Stop(count=count, seconds=seconds), "simulate-alerts"
    send(stream, shape, as_report, settings, stop, client=client, file=report, summary=_summary)


def _bursts(burst: int | None, every: float | None, night: bool) -> tuple[int, float] | None:
    if night:
        return burst or _VISIT, _VISIT_EVERY if every is None else every
    if burst is None:
        if every is not None:
            raise ConfigError(f"--every {every:g}: expected --burst with it, got none")
        return None
    return burst, 10.0 if every is None else every


def _summary(report: AlertReport) -> str:
    active = sum(state == "ACTIVE" for state in report.alarms.values())
    return (
        f"sent {report.sent:,} records in {report.elapsed:.1f} s: {report.alerts:,} alerts of {len(report.sources):,}"
        f" sources, {sum(report.garbage.values()):,} that are none;"
        f" of {len(report.alarms):,} alarms {active:,} are active"
    )

"""`sdp-facade simulate ingest`: the ingest nodes, for demos, tests and load."""

from functools import partial
from typing import Annotated, Any

from facade.flows.telemetry.simulator.faults import FAR, Faults, Loss, Scenario, Silence, Skew, TimeLimits
from facade.flows.telemetry.simulator.heaps import HeapNumbers, HeapStream
from facade.flows.telemetry.simulator.ingest import HeapReport, heap_report, heap_shape
from facade.flows.telemetry.summed import sums_of
from facade.kernel.clock import SECOND, SystemClock
from facade.kernel.console import ERR
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

EPILOG = """
Examples:

sdp-facade simulate ingest --nodes 4 --rate 1000
# until Ctrl-C, 1,000 heaps/s of four nodes together

sdp-facade simulate ingest --nodes 4 --rate 127200 --seconds 60 --report sent.json
# the full load of four nodes for a minute; sent.json says what must be found at the other end

sdp-facade simulate ingest --nodes 100 --rate 3180000 --columnar --summed --seconds 60
# the full load of a hundred nodes, as columnar batches with their sums

sdp-facade simulate ingest --count 100000 --garbage 0.001 --duplicates 0.001 --gaps 0.001 --disorder 0.001
# a bad day, the same one for the same --seed

sdp-facade simulate ingest --silence 2:10:25 --skew 1:-30
# node 2 says nothing from second 10 to 25; the clock of node 1 is 30 s behind, so all its records are late
"""


def ingest(
    nodes: Annotated[int | None, sending(min=1, help="Ingest nodes. Default: the deployment's.")] = None,
    first_node: Annotated[
        int, sending(min=0, help="Number of the first node, to divide the nodes among several simulators.")
    ] = 0,
    rate: Annotated[float, sending(help="Heaps/s of all nodes together.")] = 1000.0,
    columnar: Annotated[
        bool,
        sending("--columnar", help="Send ten columnar batches/s for each node, not a record for each heap."),
    ] = False,
    summed: Annotated[
        bool, sending("--summed", help="Sum up each columnar batch, so that workers need not read its columns.")
    ] = False,
    seed: Seed = 1,
    seconds: Seconds = None,
    count: Count = None,
    scan_id: Annotated[int | None, sending(min=1, max=2**53 - 1, help="Default: the Unix time at the start.")] = None,
    report: ReportFile = None,
    gaps: Annotated[float, share(help="A sequence number is skipped.")] = 0.0,
    duplicates: Annotated[float, share(help="A record is sent twice.")] = 0.0,
    disorder: Annotated[float, share(help="Two neighbours of one node swap places.")] = 0.0,
    late: Annotated[float, share(help="The data time is old.")] = 0.0,
    late_seconds: Annotated[float, fault(help="How old.")] = FAR,
    ahead: Annotated[float, share(help="The data time is in the future.")] = 0.0,
    ahead_seconds: Annotated[float, fault(help="How far.")] = FAR,
    garbage: Annotated[float, share(help="A malformed record follows; all kinds in turn.")] = 0.0,
    faults_for: Annotated[
        float | None, fault(min=0, help="Probabilities are 0 after this time, in seconds. Default: never.")
    ] = None,
    silence: Annotated[
        list[str] | None, fault(metavar="NODE:FROM:TO", help="A node stops; seconds. Repeatable.")
    ] = None,
    skew: Annotated[list[str] | None, fault(metavar="NODE:SECONDS", help="A node's clock is off. Repeatable.")] = None,
    loss: Annotated[
        list[str] | None, fault(metavar="NODE:SHARE", help="A node loses this share of its packets. Repeatable.")
    ] = None,
    bootstrap: Bootstrap = None,
    prefix: Prefix = None,
) -> None:
    """Send heap notifications as the ingest nodes do.

    The report has the records sent, per fault and node, and their expected outcomes.

    The exit code is 1 if a record was not delivered.
    """
    settings = deployment(bootstrap, prefix)
    window = load().topics[HeapStream.topic].window
    if window is None:
        raise ConfigError(f"topics.toml: topics.{HeapStream.topic}: expected a [window]")
    faults = Faults(
        gaps=gaps,
        duplicates=duplicates,
        disorder=disorder,
        late=late,
        late_seconds=late_seconds,
        ahead=ahead,
        ahead_seconds=ahead_seconds,
        garbage=garbage,
        chance_seconds=faults_for,
        silences=tuple(map(Silence.parse, silence or ())),
        skews=tuple(map(Skew.parse, skew or ())),
        losses=tuple(map(Loss.parse, loss or ())),
    )
    scenario = Scenario(
        nodes=settings.nodes if nodes is None else nodes,
        rate=rate,
        seed=seed,
        scan_id=SystemClock().now_us() // SECOND if scan_id is None else scan_id,
        first_node=first_node,
        faults=faults,
        limits=TimeLimits(lateness=window.lateness, ahead=window.ahead, window=window.length),
    )
    if first_node + scenario.nodes > settings.nodes:
        ERR.print(f"[yellow]the deployment has {settings.nodes} nodes; records of others become dead letters")
    stream, stop = _stream(scenario, columnar=columnar, summed=summed), Stop(count=count, seconds=seconds)
    as_report = partial(heap_report, stream)
    about: dict[str, Any] = {"client": "simulate-ingest", "file": report, "summary": _summary}
    send(stream, heap_shape(stream), as_report, settings, stop, **about)


def _stream(scenario: Scenario, *, columnar: bool, summed: bool) -> HeapNumbers:
    if summed and not columnar:
        raise ConfigError("--summed: expected it with --columnar, as records of single heaps have no sums")
    if not columnar:
        return HeapStream(scenario)
    try:
        from facade.flows.telemetry.simulator.columnar import ColumnarHeapStream
    except ModuleNotFoundError as error:
        raise ConfigError("--columnar needs pyarrow: pip install 'sdp-tango-facade[batches]'") from error
    return ColumnarHeapStream(scenario, sums_of(load(), HeapStream.topic) if summed else None)


def _summary(report: HeapReport) -> str:
    expected = report.expected
    refused = sum(expected.dead_lettered.values())
    text = (
        f"sent {report.sent:,} records in {report.elapsed:.1f} s ({report.sent / max(report.elapsed, 1e-3):,.0f}/s):"
        f" {expected.used:,} to be used, {expected.late:,} late, {sum(expected.suppressed.values()):,} suppressed,"
        f" {refused:,} dead letters"
    )
    if not report.certain:
        text += (
            f"\n[yellow]records waited up to {report.longest_wait:.1f} s for the broker:"
            " some of those to be used may be late instead, or ones ahead be used"
        )
    return text

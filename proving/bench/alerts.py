"""From an alert on the bus to its event in another process, beside the bare hops of the same way."""

from collections.abc import Sequence

from proving.bench.alert_roles import Sample
from proving.bench.deployment import Deployment, deployment
from proving.bench.load import NODES, RATE
from proving.bench.report import Outcome, Verdict, quantiles
from proving.testbed import Stage

BAR = 1.5
"""Times the sum of the bare hops, at p99."""


def alerts(stage: Stage, *, quick: bool) -> Outcome:
    """Measure the way of an alert, in quiet, while four nodes notify at full rate, and beside large things."""
    count = 300 if quick else 2000
    settings, bare = stage.settings("alerts", nodes=NODES), stage.settings("bridge")
    with deployment(stage, settings) as running, stage.topics(bare, 1):
        bridge = stage.play("bare-bridge", bare)
        running.processes["bare-bridge"] = bridge
        stage.until_ready(bridge)
        address = bridge.result.with_suffix(".address").read_text()
        quiet = _run(running, count, address, bare.prefix, "quiet")
        running.stream(RATE)
        stage.watch(4.0, "warm-up")
        loaded = _run(running, count, address, bare.prefix, "under load")
        name = running.large()
        stage.watch(4.0, "warm-up")
        beside = _run(running, count, address, bare.prefix, "beside large things")
        running.require_all()
    parts: dict[str, Sequence[Sample]] = {"quiet": quiet, f"{RATE:,.0f} notifications/s": loaded, name: beside}
    return Outcome(
        name="alerts",
        what="alert on the bus -> event of lastAlert in another process",
        how=(
            f"{count} alerts, one after the other; between them, through a bare bridge in a process of its own: a"
            " record on Kafka until it is read, and a Tango event until it has come",
        ),
        verdicts=tuple(verdict for name, samples in parts.items() for verdict in _verdicts(name, samples)),
        notes=tuple(_in_words(name, samples) for name, samples in parts.items()),
        figures=dict(parts),
    )


def _run(running: Deployment, count: int, address: str, bare_prefix: str, what: str) -> list[Sample]:
    stage = running.stage
    stage.say(f"  {count} alerts, {what}")
    client = stage.play(
        "send-alerts",
        running.settings,
        name=f"alerts-{what.replace(' ', '-')}",
        alerts=count,
        warm_up=20,
        bridge=address,
        bare_prefix=bare_prefix,
    )
    return stage.result(client, list[Sample], 600.0)


def _verdicts(name: str, samples: Sequence[Sample]) -> list[Verdict]:
    whole, bare = quantiles([s.whole for s in samples]), quantiles([s.kafka + s.tango for s in samples])
    if whole is None or bare is None:
        return []
    ratio = whole.p99 / bare.p99
    found = f"{ratio:.2f} ({whole.p99 * 1e3:.1f} ms beside {bare.p99 * 1e3:.1f} ms)"
    return [Verdict(what=f"p99 / p99 of the bare hops, {name}", bar=f"<= {BAR:g}", found=found, reached=ratio <= BAR)]


def _in_words(name: str, samples: Sequence[Sample]) -> str:
    def text(values: Sequence[float]) -> str:
        found = quantiles(values)
        return "-" if found is None else found.text(1e3, "ms")

    return (
        f"{name}: alert to event {text([s.whole for s in samples])}; bare hops together"
        f" {text([s.kafka + s.tango for s in samples])} (Kafka {text([s.kafka for s in samples])}; Tango event"
        f" {text([s.tango for s in samples])})"
    )

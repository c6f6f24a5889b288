"""From a Tango call to the event with the command's outcome, beside the bare hops of the same way."""

from collections.abc import Sequence

from proving.bench.command_roles import Sample
from proving.bench.deployment import Deployment, deployment
from proving.bench.load import NODES, RATE
from proving.bench.report import Outcome, Quantiles, Verdict, quantiles
from proving.testbed import Stage

BAR = 1.5
"""Times the sum of the bare hops, at p99."""
_WARM_UP = 20_000
"""Records there and back before the first command."""


def commands(stage: Stage, *, quick: bool) -> Outcome:
    """Measure the way of a command, in quiet, while four nodes notify at full rate, and beside large things."""
    count = 200 if quick else 1000
    settings = stage.settings("commands", nodes=NODES)
    echo_settings = stage.settings("echo")
    with deployment(stage, settings) as running, stage.topics(echo_settings, 1):
        for role in ("controller", "echo", "bare-device"):
            made = stage.play(role, echo_settings if role == "echo" else settings)
            running.processes[role] = made
            if role != "controller":
                stage.until_ready(made)
        address = running.processes["bare-device"].result.with_suffix(".address").read_text()
        quiet = _run(running, count, address, echo_settings.prefix, "quiet", warm_up=_WARM_UP)
        running.stream(RATE)
        stage.watch(4.0, "warm-up")
        loaded = _run(running, count, address, echo_settings.prefix, "under load")
        name = running.large()
        stage.watch(4.0, "warm-up")
        beside = _run(running, count, address, echo_settings.prefix, "beside large things")
        running.require_all()
    parts: dict[str, Sequence[Sample]] = {"quiet": quiet, f"{RATE:,.0f} notifications/s": loaded, name: beside}
    return Outcome(
        name="commands",
        what="Tango call -> durable record -> controller -> final ack -> event in the caller's process",
        how=(
            f"{count} Configure commands, one after the other, to a controller that only reports the new state; between"
            " them, in the same process, the bare hops: a durable Kafka record to another process and one back, and a"
            f" Tango call to another process until the event that it sets off. Before all that, {_WARM_UP:,} records"
            " there and back: a broker that has just been started spends a core on compiling itself",
        ),
        verdicts=tuple(verdict for name, samples in parts.items() for verdict in _verdicts(name, samples)),
        notes=tuple(_in_words(name, samples) for name, samples in parts.items()),
        figures=dict(parts),
    )


def _run(
    running: Deployment, count: int, address: str, echo_prefix: str, what: str, *, warm_up: int = 0
) -> list[Sample]:
    stage = running.stage
    stage.say(f"  {count} commands, {what}")
    client = stage.play(
        "call-commands",
        running.settings,
        name=f"caller-{what.replace(' ', '-')}",
        commands=count,
        warm_up=warm_up,
        bare_device=address,
        echo_prefix=echo_prefix,
    )
    return stage.result(client, list[Sample], 600.0)


def _verdicts(name: str, samples: Sequence[Sample]) -> list[Verdict]:
    whole, bare = (quantiles([of(sample) for sample in samples]) for of in (lambda s: s.whole, _sum))
    if whole is None or bare is None:
        return []
    ratio = whole.p99 / bare.p99
    found = f"{ratio:.2f} ({whole.p99 * 1e3:.1f} ms beside {bare.p99 * 1e3:.1f} ms)"
    return [Verdict(what=f"p99 / p99 of the bare hops, {name}", bar=f"<= {BAR:g}", found=found, reached=ratio <= BAR)]


def _sum(sample: Sample) -> float:
    return sample.kafka + sample.tango


def _in_words(name: str, samples: Sequence[Sample]) -> str:
    def text(values: Sequence[float]) -> str:
        found: Quantiles | None = quantiles(values)
        return "-" if found is None else f"p50 {found.p50 * 1e3:.1f}, p99 {found.p99 * 1e3:.1f} ms"

    return (
        f"{name}: whole {text([s.whole for s in samples])}; the call alone {text([s.call for s in samples])};"
        f" bare hops together {text([_sum(s) for s in samples])} (Kafka there and back"
        f" {text([s.kafka for s in samples])}, Tango call and event {text([s.tango for s in samples])})"
    )

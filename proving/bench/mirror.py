"""The telescope model: many attributes on one core, and from a device's event to its record beside the bare hops."""

from collections.abc import Sequence

import tango

from facade.bus.kafka.producer import KafkaWriter
from facade.bus.port import BusHealth
from facade.flows.mirror.messages import MirrorRule, rule_record
from proving.bench.hop_roles import Sample
from proving.bench.hops import hop_notes, hop_verdicts
from proving.bench.mirror_roles import FAMILY, SERVER, Followed
from proving.bench.report import Outcome, Verdict, at_most, quantiles
from proving.deployment import Deployment
from proving.gauges import cores_used, cpu_of_all, in_words
from proving.testbed import Testbed

DEVICES, ATTRIBUTES = 50, 100
"""Devices, and attributes of each, which are pushed once a second."""
BACK_WITHIN = 5.0
"""From a kill of the mirror, which is started again at once, until the value of each attribute is newer [s]."""
_WITHIN = 180.0
_SETTLE = 5.0


def mirror(testbed: Testbed, *, quick: bool) -> Outcome:
    """Mirror 5,000 attributes at 1 Hz."""
    seconds, count = (10.0, 200) if quick else (60.0, 1000)
    parts: dict[str, Sequence[Sample]] = {}
    with testbed.deployment("mirror", without="") as made:
        made.register()
        dishes = made.play("dishes", devices=DEVICES, attributes=ATTRIBUTES)
        try:
            made.await_ready(dishes)
            server = made.server("mirror")
            progress, begin = testbed.progress, testbed.progress.clock.monotonic()
            progress.demand(lambda: made.answers("mirror"), _WITHIN, "the device server mirror")
            _write_rule(made)
            progress.demand(lambda: _present(made) >= DEVICES * ATTRIBUTES, _WITHIN, "all has been read")
            took = progress.clock.monotonic() - begin
            parts["quiet"] = made.result(made.play("probe-mirror", ends=True, count=count), list[Sample])
            dishes.release()
            progress.wait(_SETTLE, "warm-up")
            before = cpu_of_all(made)
            followed = made.result(made.play("follow-mirror", ends=True, seconds=seconds), Followed)
            cores = cores_used(before, cpu_of_all(made), followed.seconds)
            label = f"{DEVICES * ATTRIBUTES:,} values/s"
            parts[label] = made.result(made.play("probe-mirror", ends=True, count=count), list[Sample])
            waits = made.play("await-mirror", attributes=DEVICES * ATTRIBUTES)
            made.await_ready(waits)
            made.processes.kill(server.name)
            waits.release()
            made.server("mirror", name="mirror-again")
            back = made.result(waits, float)
        finally:
            database = tango.Database(*made.tango_host.split(":"))
            database.delete_server(f"{SERVER}/1")
    rate = followed.records / followed.seconds
    spread = quantiles(followed.latencies)
    return Outcome(
        name="mirror",
        what="Tango attributes on the bus: event of a device -> record on telescope.model in another process",
        how=(
            f"{DEVICES} devices with {ATTRIBUTES} attributes each, pushed once a second by one process; one mirror",
            f"{count} values of one more attribute, one after the other; between them, in the same process, the bare"
            " hops: a Tango event until it has come, and a record on Kafka until it is read",
        ),
        verdicts=(
            at_most(f"cores of the mirror at {rate:,.0f} values/s", cores.get("mirror"), 1.0, "cores"),
            Verdict(
                what=f"values missing without a word, of {followed.records:,}",
                bar="0",
                found=f"{followed.unsaid}; said: {followed.gaps}",
                reached=followed.unsaid == 0,
            ),
            *(verdict for name, samples in parts.items() for verdict in hop_verdicts(name, samples)),
            Verdict(
                what="each of these values, from its push to its record",
                bar="",
                found=spread.text(1e3, "ms") if spread else "-",
            ),
            at_most("from kill -9 until the newest values are right", back, BACK_WITHIN, "s"),
            Verdict(what="from the rule until all has been read", bar="", found=f"{took:.1f} s"),
        ),
        notes=(*(hop_notes(name, samples) for name, samples in parts.items()), in_words(cores)),
        figures={**parts, "cores": cores, "records": followed.records, "seconds": followed.seconds},
    )


def _write_rule(made: Deployment) -> None:
    rule = MirrorRule(rule="bench", patterns=[f"{FAMILY}/*/a*", f"{FAMILY}/000/probe"], time=1, origin="bench")
    writer = KafkaWriter(made.connection, health=BusHealth(), client="rule")
    writer.send_durably(rule_record(rule), 30.0)


def _present(made: Deployment) -> int:
    (device,) = made.devices("SdpMirror")
    try:
        mirrored, polled, disconnected = made.proxy(device).read_attributes(["mirrored", "polled", "disconnected"])
    except tango.DevFailed:
        return 0
    return int(mirrored.value or 0) - int(polled.value or 0) - int(disconnected.value or 0)

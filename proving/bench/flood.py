"""Alerts and commands beside a flood of one node's logs: quiet, without quotas, and with them."""

from collections.abc import Sequence
from typing import Any

from facade.bus import quotas
from facade.infra.kafka import configure
from proving.bench.hop_roles import Sample
from proving.bench.hops import hop_notes
from proving.bench.load import NODES, Filled
from proving.bench.report import MEGA, Outcome, Verdict, quantiles
from proving.deployment import Deployment
from proving.testbed import Testbed

BAR = 1.10
"""Times the p99 of quiet."""
_ROLE = "shipper"
_WARM_UP = 20_000
_SETTLE = 5.0
_QUIET, _FREE, _LIMITED = "quiet", "flood without quotas", "flood with quotas"


def flood(testbed: Testbed, *, quick: bool) -> Outcome:
    """Measure all three in one run, on one system."""
    counts = {"commands": 200, "alerts": 300} if quick else {"commands": 1000, "alerts": 2000}
    found: dict[str, dict[str, Sequence[Sample]]] = {name: {} for name in counts}
    rates: dict[str, float] = {}
    with (
        testbed.system("flood", nodes=NODES) as system,
        testbed.deployment("flood-commands") as hops,
        testbed.deployment("flood-alerts") as bridged,
    ):
        system.play("controller")
        hops.await_ready(hops.play("echo"))
        device, bridge = hops.play("bare-device"), bridged.play("bare-bridge")
        hops.await_ready(device)
        bridged.await_ready(bridge)
        ways: dict[str, tuple[str, dict[str, Any]]] = {
            "commands": ("call-commands", {"bare": device.address, "bare_prefix": hops.settings.prefix}),
            "alerts": ("send-alerts", {"bare": bridge.address, "bare_prefix": bridged.settings.prefix}),
        }

        def measure(label: str, warm_up: int = 0) -> None:
            for name, (role, task) in ways.items():
                testbed.progress.step(f"  {counts[name]} {name}, {label}")
                first = warm_up if name == "commands" else 0
                client = system.play(role, ends=True, warm_up=first, count=counts[name], **task)
                found[name][label] = system.result(client, list[Sample])

        measure(_QUIET, _WARM_UP)
        for label in (_FREE, _LIMITED):
            if label == _LIMITED:
                _limit(system)
            client = quotas.name_of(_ROLE)
            flooding = system.play("flood-logs", client=client)
            system.await_ready(flooding)
            testbed.progress.wait(_SETTLE, "warm-up")
            measure(label)
            flooding.call_off()
            filled = system.result(flooding, Filled)
            rates[label] = filled.value_bytes / filled.seconds / MEGA
        system.processes.check()
    return Outcome(
        name="flood",
        what="alerts and commands beside one node that writes logs as fast as the broker takes them",
        how=(
            f"{counts['commands']} commands and {counts['alerts']} alerts, as in `commands` and `alerts`, in each part;"
            " the quota is that which the class of the topic gives to a shipper",
        ),
        verdicts=tuple(_verdicts(found)),
        notes=(
            *(f"{label}: {rate:.1f} MB/s of logs" for label, rate in rates.items()),
            *(hop_notes(f"{name}, {label}", made) for name, parts in found.items() for label, made in parts.items()),
        ),
        figures={"ways": found, "logs_mb_s": rates},
    )


def _limit(system: Deployment) -> None:
    """Give the flooding client the quota of its role; its id has the prefix of this deployment."""
    client = quotas.name_of(_ROLE)
    rate = quotas.planned(system.icd)[client]
    name = f"{system.settings.prefix}{client}"
    configure(quotas.alter(system.settings.bootstrap, "clients", name, rate), None, system.progress.step)


def _verdicts(found: dict[str, dict[str, Sequence[Sample]]]) -> list[Verdict]:
    verdicts = []
    for name, parts in found.items():
        p99 = {label: made.p99 for label, one in parts.items() if (made := quantiles([s.whole for s in one]))}
        for label in (_FREE, _LIMITED):
            if _QUIET not in p99 or label not in p99:
                continue
            ratio = p99[label] / p99[_QUIET]
            text = f"{ratio:.2f} ({p99[label] * 1e3:.1f} ms beside {p99[_QUIET] * 1e3:.1f} ms)"
            bar, reached = (f"<= {BAR:.2f}", ratio <= BAR) if label == _LIMITED else ("", None)
            verdicts.append(Verdict(what=f"{name}: p99 / p99 quiet, {label}", bar=bar, found=text, reached=reached))
    return verdicts

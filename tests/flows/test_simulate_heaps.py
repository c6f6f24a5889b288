"""The simulated ingest stream: realistic, repeatable, and exactly accounted for."""

import re
from collections import Counter
from dataclasses import replace
from typing import Any

import jsonschema
import msgspec
import numpy as np
import pytest

from facade.flows.telemetry.simulator.faults import Faults, Loss, Scenario, Silence, Skew
from facade.flows.telemetry.simulator.heaps import HeapBatch, HeapStream
from facade.kernel.errors import ConfigError
from facade.kernel.icd.load import load
from facade.kernel.sequences import SeenNumbers
from facade.sdp.columns import ColumnDecoder

ICD = load()
SCHEMA = ICD.messages["heap"]
NOW_US = 1_800_000_000_000_000
TIME = re.compile(rb'"time":\d+')
PLAIN = Scenario(nodes=3, rate=1000.0, seed=5)
FAULTS = {
    "none": Faults(),
    "gaps": Faults(gaps=0.05),
    "duplicates": Faults(duplicates=0.05),
    "disorder": Faults(disorder=0.2),
    "late": Faults(late=0.03),
    "ahead": Faults(ahead=0.03),
    "garbage": Faults(garbage=0.1),
    "silence": Faults(silences=(Silence(1, 0.5, 2.0), Silence(2, 0.0, 1.0))),
    "skew": Faults(skews=(Skew(0, 3.0), Skew(1, -30.0), Skew(2, 60.0))),
    "loss": Faults(losses=(Loss(1, 0.2),)),
    "everything": Faults(
        gaps=0.02,
        duplicates=0.03,
        disorder=0.1,
        late=0.02,
        ahead=0.02,
        garbage=0.05,
        silences=(Silence(1, 0.5, 2.0),),
        skews=(Skew(0, 3.0), Skew(2, -60.0)),
    ),
    "certain": Faults(gaps=1.0, duplicates=1.0, disorder=1.0, late=0.5, ahead=0.5, garbage=1.0),
}


def cut(scenario: Scenario, heaps: int, size: int = 97) -> tuple[HeapStream, list[HeapBatch]]:
    """Take so many heaps in batches of an awkward size."""
    stream = HeapStream(scenario)
    return stream, [
        stream.take(min(size, heaps - done), NOW_US + round(1e6 * (done + size) / scenario.rate))
        for done in range(0, heaps, size)
    ]


def values(batches: list[HeapBatch]) -> list[bytes | None]:
    return [value for batch in batches for value in batch.values]


def recount(batches: list[HeapBatch], scenario: Scenario) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Count in the plainest way what a reader must make of the records when it gets each batch at once."""
    total: dict[str, Any] = {"used": 0, "late": 0, "suppressed": Counter(), "dead_lettered": Counter(), "consumed": 0}
    nodes: dict[str, Counter[str]] = {str(n): Counter() for n in range(scenario.nodes)}
    seen: dict[str, SeenNumbers] = {str(n): SeenNumbers(limit=10**9) for n in range(scenario.nodes)}
    numbers: dict[str, set[int]] = {str(n): set() for n in range(scenario.nodes)}
    decoder = ColumnDecoder("heap", SCHEMA)
    for i, batch in enumerate(batches):
        now_us = NOW_US + round(1e6 * (i + 1) * 97 / scenario.rate)
        for key, value in zip(batch.keys, batch.values, strict=True):
            total["consumed"] += 1
            if unused := decoder.decode([value]).unused:
                kind = "suppressed" if value is None else "dead_lettered"
                total[kind][str(unused[0].reason)] += 1
                continue
            assert value is not None
            heap = msgspec.json.decode(value)
            if heap["node"] >= scenario.nodes:
                total["dead_lettered"]["unknown-node"] += 1
                continue
            assert key == b"%d" % heap["node"]
            if heap["time"] > now_us + 5_000_000:
                total["dead_lettered"]["time-ahead"] += 1
                continue
            node = key.decode()
            seen[node].add([(heap["seq"], heap["seq"])], 1)
            numbers[node].add(heap["seq"])
            outcome = "late" if heap["time"] < now_us - 10_000_000 else "used"
            total[outcome] += 1
            nodes[node].update({outcome: 1}, received=heap["received"], lost=heap["lost"], late_packets=heap["late"])
    accounts = {
        node: {
            **{name: counts[name] for name in ("used", "late", "received", "lost", "late_packets")},
            "missing": seen[node].missing,
            "duplicates": seen[node].duplicates,
            "lowest_seq": min(numbers[node], default=None),
            "highest_seq": max(numbers[node], default=None),
        }
        for node, counts in nodes.items()
    }
    return total, accounts


def test_every_record_of_a_faultless_stream_is_valid() -> None:
    """Each record passes the reference validator, and the numbers have no holes."""
    validator = jsonschema.Draft202012Validator(SCHEMA)
    _, batches = cut(PLAIN, 3000)
    heaps = [msgspec.json.decode(value) for value in values(batches) if value is not None]
    for heap in heaps:
        validator.validate(heap)
    assert len(heaps) == 3000
    assert all(heap["received"] + heap["lost"] + heap["late"] == 512 for heap in heaps)
    for node in range(3):
        mine = [heap for heap in heaps if heap["node"] == node]
        assert [heap["seq"] for heap in mine] == list(range(1000))
        assert np.all(np.diff([heap["time"] for heap in mine]) >= 0)
    assert len({heap["channel_start"] for heap in heaps}) == 3


@pytest.mark.parametrize("name", ["none", "everything"])
def test_the_same_seed_gives_the_same_bytes(name: str) -> None:
    """However a stream is cut, only the time stamps differ; another seed gives another stream."""
    scenario = replace(PLAIN, faults=FAULTS[name])

    def timeless(scenario: Scenario, size: int) -> list[bytes | None]:
        # Without zero bytes, as one kind of garbage is in UTF-16.
        return [value and TIME.sub(b"", value.replace(b"\0", b"")) for value in values(cut(scenario, 12_000, size)[1])]

    assert timeless(scenario, 97) == timeless(scenario, 5000)
    assert timeless(scenario, 97) != timeless(replace(scenario, seed=6), 97)


@pytest.mark.parametrize(("name", "nodes"), [*((name, 3) for name in FAULTS), ("everything", 40)])
def test_the_account_equals_a_recount(name: str, nodes: int) -> None:
    """What the account says, for each fault alone and for all together, is what the bytes hold."""
    scenario = replace(PLAIN, nodes=nodes, rate=1000.0, faults=FAULTS[name])
    stream, batches = cut(scenario, 9 * 97 * 3)
    total, nodes_found = recount(batches, scenario)
    assert msgspec.to_builtins(stream.account.expected()) == total
    assert msgspec.to_builtins(stream.account.nodes()) == nodes_found
    fired = {fault for fault, count in stream.account.fired.items() if count}
    wanted = {"none": set(), "loss": set(), "skew": {"late", "ahead"}, "everything": {*stream.account.fired}}.get(
        name, {name}
    )
    if name == "certain":
        wanted = {*stream.account.fired} - {"silence"}
    assert fired == wanted


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"nodes": 0}, "nodes: expected numbers from 0"),
        ({"nodes": 10_000}, "plays the stranger"),
        ({"rate": 0.0}, "rate: expected more than 0"),
        ({"rate": float("nan")}, "rate: expected more than 0"),
        ({"faults": Faults(gaps=1.5)}, "gaps: expected a probability"),
        ({"faults": Faults(late=0.6, ahead=0.6)}, "late \\+ ahead"),
        ({"faults": Faults(late=0.1, late_seconds=10.5)}, "too near to a limit"),
        ({"faults": Faults(skews=(Skew(1, 5.2),))}, "skew of node 1: .* too near to a limit"),
        ({"faults": Faults(skews=(Skew(1, float("nan")),))}, "at most ten years"),
        ({"faults": Faults(silences=(Silence(3, 0, 1),))}, "expected a node from 0 to 2, got 3"),
        ({"faults": Faults(losses=(Loss(3, 0.1),))}, "expected a node from 0 to 2, got 3"),
    ],
)
def test_a_senseless_scenario_is_refused(changes: dict[str, Any], complaint: str) -> None:
    """The message says what is wrong."""
    with pytest.raises(ConfigError, match=complaint):
        HeapStream(replace(PLAIN, **changes))


@pytest.mark.parametrize("text", ["1", "1:2", "1:-0.1", "1:nan", "a:0.1", "1:0.1:2"])
def test_a_loss_is_a_share(text: str) -> None:
    with pytest.raises(ConfigError, match="loss: expected"):
        Loss.parse(text)


@pytest.mark.parametrize("text", ["2:10", "2:25:10", "2:10:10", "2:-1:10", "2:nan:10"])
def test_a_silence_ends_after_its_begin(text: str) -> None:
    assert Silence.parse("2:0:0.5") == Silence(2, 0.0, 0.5)
    with pytest.raises(ConfigError, match="silence: expected"):
        Silence.parse(text)


def test_a_node_loses_its_share_beside_the_rare_losses_of_all() -> None:
    stream, _ = cut(replace(PLAIN, faults=FAULTS["loss"]), 6_000)
    share = {name: one.lost / (one.lost + one.received) for name, one in stream.account.nodes().items()}
    assert share["1"] == pytest.approx(0.2, abs=0.01)
    assert max(share["0"], share["2"]) < 0.01

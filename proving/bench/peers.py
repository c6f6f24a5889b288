"""Other ways on the same records: the facade that SDP memo 052 sketches, and one message at a time in asyncio.

Both are shown at their best: no validation, one figure per message instead of all of the ICD's, no
transactions, no subscribers, no database. The multiples are therefore lower bounds.
"""

import statistics
from importlib.util import find_spec

from facade.errors import InfraError
from facade.infra.ports import choose_port
from proving.bench.load import fill_topic
from proving.bench.peer_roles import DEVICE, PeerTiming
from proving.bench.report import Outcome, Verdict, ratios
from proving.bench.throughput import run_worker
from proving.deployment import Deployment
from proving.testbed import Testbed

MEMO, ASYNCIO = "the facade of SDP memo 052", "one at a time in asyncio"


def peers(testbed: Testbed, *, quick: bool) -> Outcome:
    """Compare our worker with two other ways, one after the other, again and again."""
    if missing := [name for name in ("kafka", "aiokafka") if find_spec(name) is None]:
        raise InfraError(
            f"{' and '.join(missing)} not installed; expected the extra `bench`: pip install -e '.[bench]'"
        )
    worker_records, memo_records, asyncio_records = (500_000, 10_000, 50_000) if quick else (2_000_000, 40_000, 300_000)
    rounds = 2 if quick else 3
    rates: list[tuple[float, float, float]] = []
    with testbed.deployment("peers") as deployment:
        fill_topic(deployment, worker_records)
        for number in range(rounds):
            ours = run_worker(deployment, worker_records).rate
            memo, one_by_one = _memo(deployment, memo_records), _one_at_a_time(deployment, asyncio_records)
            rates.append((ours, memo.rate, one_by_one.rate))
            testbed.progress.step(
                f"  round {number + 1} of {rounds}: worker {ours:,.0f}/s, {MEMO} {memo.rate:,.0f}/s,"
                f" {ASYNCIO} {one_by_one.rate:,.0f}/s"
            )
    ours, memo_rate, asyncio_rate = (statistics.median(column) for column in zip(*rates, strict=True))
    return Outcome(
        name="peers",
        what="our worker beside other ways of building the facade, notifications/s on the same topic",
        how=(
            f"worker: {worker_records:,} records, as in the measurement `worker`",
            f"{MEMO}: {memo_records:,} records; kafka-python, json.loads, one attribute write of a DeviceProxy per"
            " message to a PyTango device in another process",
            f"{ASYNCIO}: {asyncio_records:,} records; aiokafka and a typed msgspec decoder inside an asyncio PyTango"
            " device, one push_change_event per message, nobody subscribed",
            f"{rounds} rounds of one run each, every run a process of its own",
        ),
        verdicts=(
            Verdict(what=f"worker / {MEMO}", bar="", found=str(ratios((r[0], r[1]) for r in rates))),
            Verdict(what=f"worker / {ASYNCIO}", bar="", found=str(ratios((r[0], r[2]) for r in rates))),
        ),
        notes=(f"worker {ours:,.0f}/s, {MEMO} {memo_rate:,.0f}/s, {ASYNCIO} {asyncio_rate:,.0f}/s (medians)",),
        figures={"rates": [{"worker": r[0], "memo": r[1], "asyncio": r[2]} for r in rates]},
    )


def _memo(deployment: Deployment, records: int) -> PeerTiming:
    port = choose_port()
    sink = deployment.play("sink", port=port)
    deployment.await_ready(sink)
    try:
        address = f"tango://127.0.0.1:{port}/{DEVICE}#dbase=no"
        return deployment.result(deployment.play("memo", ends=True, device=address, records=records), PeerTiming)
    finally:
        sink.stop(2.0)


def _one_at_a_time(deployment: Deployment, records: int) -> PeerTiming:
    role = deployment.play("asyncio", ends=True, port=choose_port(), records=records)
    return deployment.result(role, PeerTiming)

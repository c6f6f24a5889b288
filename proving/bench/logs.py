"""How fast one worker sums up logs, small ones and batches, beside a loop that only consumes."""

import statistics
from typing import Any

from facade.flows.logs.messages import LOGS
from proving.bench.load import Filled
from proving.bench.logs_roles import BATCH
from proving.bench.report import MEGA, Outcome, Verdict, at_least, ratios
from proving.bench.throughput_roles import Timing
from proving.deployment import Deployment
from proving.testbed import Testbed

BAR = 0.5
"""Small records that one worker has to take [M/s]."""
_FORMS = {"syslog": 1, "otlp": BATCH}
"""Records in one of the bus."""


def logs(testbed: Testbed, *, quick: bool) -> Outcome:
    """Time a worker of logs and a bare loop on the same records."""
    records, pairs = (1_500_000, 2) if quick else (2_000_000, 3)
    verdicts: list[Verdict] = []
    notes: list[str] = []
    figures: dict[str, Any] = {}
    for form, each in _FORMS.items():
        with testbed.deployment(f"logs-{form}", without="") as made:
            testbed.progress.step(f"  filling {LOGS} with {records:,} records as {form}")
            filled = made.result(made.play("fill-logs", ends=True, records=records, form=form), Filled, 1800.0)
            found = [_pair(made, records, each, number) for number in range(pairs)]
        rate = statistics.median(worker.rate * each for worker, _ in found) / MEGA
        if each == 1:
            one = ratios((worker.rate / MEGA, 1.0) for worker, _ in found)
            verdicts.append(at_least(f"{form}: one worker, M records/s", one, BAR))
        else:
            verdicts.append(Verdict(what=f"{form}, {each} in each: one worker", bar="", found=f"{rate:.2f} M/s"))
        beside = ratios((worker.rate, bare.rate) for worker, bare in found)
        verdicts.append(Verdict(what=f"{form}: worker / bare consume()", bar="", found=str(beside)))
        peak = max(worker.peak_rss_mb for worker, _ in found)
        cpu = statistics.median(worker.cpu_per_million / each for worker, _ in found)
        notes.append(
            f"{form}: {filled.value_bytes / records:.0f} B a record; worker {rate:.2f} M/s, {cpu:.2f} CPU s/M,"
            f" {peak:.0f} MB at most"
        )
        figures[form] = [{"worker": worker.rate * each, "bare": bare.rate * each} for worker, bare in found]
    return Outcome(
        name="logs",
        what="one worker of logs (decoding, sums, numbers of shippers, transactions), M records/s",
        how=(
            f"{records:,} records of 50 nodes and 7 components, as syslog one by one, and as OTLP in protobuf"
            f" {BATCH} in each",
            f"{pairs} pairs, worker and bare loop alternately, each a process and a group of its own",
        ),
        verdicts=tuple(verdicts),
        notes=tuple(notes),
        figures=figures,
    )


def _pair(made: Deployment, records: int, each: int, number: int) -> tuple[Timing, Timing]:
    task: dict[str, Any] = {"broker_pid": made.broker.pid}
    worker = made.play("log-worker", ends=True, group=f"worker-{number}", records=records, **task)
    timed = made.result(worker, Timing)
    bare = made.play("bare", ends=True, group=f"bare-{number}", records=records // each, topic=LOGS, **task)
    return timed, made.result(bare, Timing)

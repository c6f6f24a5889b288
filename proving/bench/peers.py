"""Other ways on the same records: stream processors in Java, the facade that SDP memo 052 sketches, asyncio.

The two of Python are shown at their best: no validation, one figure per message instead of all of the ICD's, no
transactions, no subscribers, no database. Those of Java give count, sum, sum of squares, least and largest of five
fields, exactly-once, with no validation, histograms or accounts. The multiples are therefore lower bounds.
"""

import statistics
import sys
from importlib.util import find_spec
from pathlib import Path

from facade.errors import InfraError
from facade.infra import tools
from facade.infra.ports import choose_port
from proving.bench import peers_java, peers_windows
from proving.bench.load import NODES, RATE, fill_topic
from proving.bench.peer_roles import DEVICE, PeerTiming
from proving.bench.report import Outcome, Verdict, ratios
from proving.bench.throughput import run_worker
from proving.bench.throughput_roles import Timing
from proving.deployment import Deployment
from proving.roles import Role, command_line
from proving.testbed import Testbed

OURS, ASYNCIO = "worker", "one at a time in asyncio"
MEMO = {f"the facade of SDP memo 052, kafka-python {version}": version for version in ("2.3.3", "3.0.12")}

Round = dict[str, PeerTiming]
"""What each way needed, in one round."""


def peers(testbed: Testbed, *, quick: bool) -> Outcome:
    """Compare our worker with other ways, one after the other, again and again."""
    if find_spec("aiokafka") is None:
        raise InfraError("aiokafka not installed; expected the extra `bench`: pip install -e '.[bench]'")
    records, memo_records, asyncio_records = (1_000_000, 10_000, 50_000) if quick else (4_000_000, 40_000, 300_000)
    rounds = 1 if quick else 3  # a virtual machine needs many records to be warm
    found: list[Round] = []
    with testbed.deployment("peers") as deployment:
        absent = _absent(deployment)
        fill_topic(deployment, records)
        for number in range(rounds):
            made: Round = {OURS: of_worker(run_worker(deployment, records))}
            made |= _stream_processors(deployment, records, number, absent)
            for what, version in MEMO.items():
                made[what] = _memo(deployment, memo_records, version)
            made[ASYNCIO] = _one_at_a_time(deployment, asyncio_records)
            found.append(made)
            testbed.progress.step(
                f"  round {number + 1} of {rounds}: " + ", ".join(_line(*one) for one in made.items())
            )
    behind = peers_windows.measure(testbed, (name for name in peers_java.PEERS if name not in absent), quick=quick)
    return Outcome(
        name="peers",
        what="our worker beside other ways of building the facade, notifications/s on the same topic",
        how=(
            f"worker: {records:,} records, as in the measurement `worker`",
            "Kafka Streams and Flink: the same records, of which the second half is timed, when the virtual machine"
            " is warm; windows of 1 s of the data's time by node; five fields; exactly-once, a commit each 0.2 s; one"
            " thread for the one partition, state in memory, streaming JSON parser, 512 MB of heap, parallel collector;"
            " what can be read committed held all notifications, and both had the same sums",
            f"SDP memo 052: {memo_records:,} records; kafka-python, json.loads, one attribute write of a DeviceProxy"
            " per message to a PyTango device in another process",
            f"{ASYNCIO}: {asyncio_records:,} records; aiokafka and a typed msgspec decoder inside an asyncio PyTango"
            " device, one push_change_event per message, nobody subscribed (as the queue connector does it)",
            f"{rounds} round(s) of one run each, every run a process of its own",
            f"windows: {RATE:,.0f} notifications/s of {NODES} nodes, one way after the other; worker: until the Tango"
            " event in a client; Kafka Streams and Flink: until the committed record, after 20 s for their compiler",
        ),
        verdicts=(*verdicts(found), *peers_windows.verdicts(behind)),
        notes=(*medians(found), *(f"{peers_java.PEERS[name]} not measured: {why}" for name, why in absent.items())),
        figures={
            "rounds": [{what: _figures(timing) for what, timing in one.items()} for one in found],
            "windows": behind,
        },
    )


def verdicts(found: list[Round]) -> tuple[Verdict, ...]:
    """Set our worker beside each other way: by the wall clock, and by the processor time of the process."""
    made = []
    for peer in (what for what in found[0] if what != OURS):
        wall = ratios((one[OURS].rate, one[peer].rate) for one in found)
        core = ratios((one[OURS].rate_per_core, one[peer].rate_per_core) for one in found)
        made.append(Verdict(what=f"worker / {peer}, records/s", bar="", found=str(wall)))
        made.append(Verdict(what=f"worker / {peer}, records/s per core", bar="", found=str(core)))
    return tuple(made)


def medians(found: list[Round]) -> tuple[str, ...]:
    """Say how fast each way was."""
    return tuple(
        f"{what}: {statistics.median(one[what].rate for one in found):,.0f}/s,"
        f" {statistics.median(one[what].rate_per_core for one in found):,.0f}/s per core (medians)"
        for what in found[0]
    )


def of_worker(timing: Timing) -> PeerTiming:
    """Return what a worker needed, as of a peer."""
    cpu = timing.cpu_per_million * timing.records / 1e6
    return PeerTiming(records=timing.records, seconds=timing.seconds, cpu=cpu)


def _line(what: str, timing: PeerTiming) -> str:
    return f"{what} {timing.rate:,.0f}/s ({timing.rate_per_core:,.0f} per core)"


def _figures(timing: PeerTiming) -> dict[str, float]:
    return {"records_per_s": timing.rate, "records_per_s_per_core": timing.rate_per_core}


def _absent(deployment: Deployment) -> dict[str, str]:
    """Make the programs in Java; return why there is none, by name."""
    absent = {}
    for name in peers_java.PEERS:
        try:
            peers_java.program(name, deployment.progress.step)
        except InfraError as error:
            absent[name] = str(error).partition("\n")[0]
    return absent


def _stream_processors(deployment: Deployment, records: int, number: int, absent: dict[str, str]) -> Round:
    made: Round = {}
    sums = {}
    for name in peers_java.PEERS:
        if name not in absent:
            made[peers_java.PEERS[name]], sums[name] = peers_java.run(deployment, name, records, number)
    if len({tuple(round(total, 3) for total in one) for one in sums.values()}) > 1:
        raise InfraError(f"expected the same sums of all fields from all stream processors, got {sums}")
    return made


def _kafka_python(version: str, report: tools.Report) -> Path:
    """Return a folder with this version, which is installed there the first time."""

    def install(folder: Path) -> None:
        report(f"  kafka-python {version}: pip installs it (once)")
        argv = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder)]
        tools.run([*argv, f"kafka-python=={version}"], what=f"installing kafka-python {version}")

    return tools.installed_once(f"kafka-python-{version}", install, report)


def _memo(deployment: Deployment, records: int, version: str) -> PeerTiming:
    port, library = choose_port(), str(_kafka_python(version, deployment.progress.step))
    sink = deployment.play("sink", port=port)
    deployment.await_ready(sink)
    try:
        address = f"tango://127.0.0.1:{port}/{DEVICE}#dbase=no"
        argv = command_line("memo", deployment.folder / "memo.log", {"device": address, "records": records})
        environment = {**deployment.environment, "PYTHONPATH": library}
        return deployment.result(deployment.processes.start(Role, "memo", argv, environment, ends=True), PeerTiming)
    finally:
        sink.stop(2.0)


def _one_at_a_time(deployment: Deployment, records: int) -> PeerTiming:
    role = deployment.play("asyncio", ends=True, port=choose_port(), records=records)
    return deployment.result(role, PeerTiming)

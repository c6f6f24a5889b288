"""Nothing is lost and nothing is counted twice, whatever is killed (rule 3 of the design)."""

import itertools
import json

import pytest

from tests.conftest import Deploy
from tests.support.deployment import BUS, Deployment, await_totals, node_device
from tests.support.topics import Member, members
from tests.support.waiting import until

pytestmark = [pytest.mark.kafka, pytest.mark.tango]

OUTAGE = 12.0
"""Longer than a session lasts, and than the interface allows records to be late [s]."""


def offsets_are_disjoint(deployment: Deployment) -> None:
    """The committed entries of the account cover each partition of the log once, without a hole."""
    entries = [json.loads(m.value()) for m in deployment.messages("accounts")]
    entries = [entry for entry in entries if entry["stream"] == "ingest.heaps"]
    for partition in {entry["partition"] for entry in entries} - {-1}:
        ranges = sorted((e["offset_from"], e["offset_to"]) for e in entries if e["partition"] == partition)
        assert ranges[0][0] == 0
        for (_, end), (begin, _) in itertools.pairwise(ranges):
            assert begin == end, f"partition {partition}: one entry ends at {end}, the next begins at {begin}"


def slots(deployment: Deployment) -> dict[str, Member]:
    """Return the group's members by slot; a worker that left stays one until its session has timed out."""
    group = deployment.topic("aggregate")
    return {name.removeprefix(f"{group}-"): found for name, found in members(deployment.bootstrap, group).items()}


def both_partitions(deployment: Deployment, *, but: str = "") -> bool:
    """Return whether two workers have a partition each, none of them the member `but`."""
    found = slots(deployment).values()
    return sorted(sorted(member.partitions) for member in found) == [[0], [1]] and but not in {m.id for m in found}


def has_all(deployment: Deployment, slot: str) -> bool:
    """Return whether one worker is alone and has both partitions."""
    return {slot: {0, 1}} == {name: member.partitions for name, member in slots(deployment).items()}


@pytest.mark.slow
def test_workers_join_leave_and_take_each_others_slot(deploy: Deploy) -> None:
    """Scaling from one worker to two and back, in the middle of the stream, loses and doubles nothing. Of two workers
    with one slot the newer one works: the older one ends with a message that names the member and says what to do. A
    supervisor that starts the older one again makes them change places, and each end is told. A worker without a slot
    takes nobody's."""
    deployment = deploy(nodes=4)
    deployment.serve()
    first = deployment.worker("0")
    simulation = deployment.simulate("--rate", 500)
    simulation.sends(4000)
    second = deployment.launch("aggregate-1", "aggregate")
    until(lambda: both_partitions(deployment), "the second worker has a partition", every=0.3)
    before = until(lambda: slots(deployment).get("1"), "its name in the group").id
    assert second.terminate() == 0
    simulation.sends(simulation.report.sent + 4000)
    older = deployment.worker("1")
    until(lambda: both_partitions(deployment, but=before), "it has its partition again", every=0.3)
    assert first.terminate() == 0
    until(lambda: has_all(deployment, "1"), "the one left has all", every=0.3)
    for log in ("second", "third"):
        newer = deployment.worker("1", log=log)
        assert older.exit_code() == 1, older.tail()
        group = deployment.topic("aggregate")
        assert f"another process has joined group {group} as {group}-1" in older.text
        assert "--slot" in older.text
        assert "Traceback" not in older.text
        older = newer
    simulation.sends(simulation.report.sent + 4000)
    assert newer.running, newer.tail()
    await_totals(deployment, simulation.stop())
    offsets_are_disjoint(deployment)
    assert newer.terminate() == 0


@pytest.mark.slow
def test_the_broker_is_away_for_long(deploy: Deploy) -> None:
    """The broker is away for longer than sessions, transactions and lateness last: everything arrives once, what
    arrived too late is counted as late, and all processes go on by themselves."""
    deployment = deploy(nodes=4)
    processes = [deployment.worker("0"), deployment.worker("1"), *deployment.serve().values()]
    simulation = deployment.simulate("--rate", 500)
    simulation.sends(4000)
    deployment.broker.kill()
    until(lambda: simulation.report.longest_wait > OUTAGE, "the sender waits")
    deployment.broker.start()
    simulation.sends(simulation.report.sent + 4000)
    report = simulation.stop()
    await_totals(deployment, report)
    offsets_are_disjoint(deployment)
    assert deployment.quality(node_device(0), "heapsTotal") == "VALID"
    assert all(process.running for process in processes)
    until(lambda: deployment.read_one(BUS, "connected") is True, "connected again")

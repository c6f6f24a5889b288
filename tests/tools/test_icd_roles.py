"""Who writes and who reads each topic: the ICD's lists are those of the processes."""

from collections.abc import Mapping, Sequence

import pytest

from facade.admin.rights import planned
from facade.archive.recording import HISTORY
from facade.archive.reports import REPORTS
from facade.flows.alerts.messages import ACTIONS, ALERTS, NOTIFICATIONS, PACKETS
from facade.flows.alerts.messages import STATES as ALARMS
from facade.flows.blocks.source import BLOCKS
from facade.flows.commands.messages import ACKS, COMMANDS, HEARTBEATS, HELD_COMMANDS, ORDERS, REFUSALS
from facade.flows.logs.messages import LOGS, METRICS
from facade.flows.logs.messages import SUMMARY as SUMS
from facade.flows.mirror.messages import MODEL, RULES
from facade.flows.mirror.mirror import Mirror
from facade.flows.mirror.streaming import STREAMING
from facade.flows.overview.page_acts import TOPIC as PAGE_ACTS
from facade.flows.quality.records import QUALITY
from facade.flows.reservations.ledger import RESERVATIONS
from facade.flows.tables.contents import Contents
from facade.flows.tables.messages import CALIBRATION, TABLES
from facade.flows.telemetry.plan import plans
from facade.flows.telemetry.simulator.heaps import HeapStream
from facade.kernel.bus.dead_letters import TOPIC as DEAD_LETTERS
from facade.kernel.bus.offsets import POSITIONS
from facade.kernel.bus.port import Record
from facade.kernel.clock import ManualClock
from facade.kernel.config import Settings
from facade.kernel.icd.load import load
from facade.kernel.icd.model import instance_role
from facade.kernel.manifest import manifests
from facade.kernel.runtime.accounts import ACCOUNTS
from facade.kernel.runtime.composition import Server
from facade.kernel.runtime.heartbeats import SERVERS
from facade.kernel.runtime.replay import TOPIC as REPLAY
from facade.sdp.device_state import SETTINGS
from facade.sdp.device_state import TOPIC as STATE
from tests.support.commanding import Sink
from tests.support.simulated_bus import MemoryBroker, MemoryBus, MemoryReader

pytestmark = pytest.mark.needs("tools")

ICD = load()
PLANS = plans(ICD)
WRITTEN = {role: {name for name, topic in ICD.topics.items() if role in topic.writers} for role in ICD.roles}
READ = {role: {name for name, topic in ICD.topics.items() if role in topic.readers} for role in ICD.roles}
INSTANCES = sorted({instance_role(one.instance) for one in ICD.classes.values()})
NUMBERS = {"node": 0, "subarray": 1, "archive": 0}


class SeenBus(MemoryBus):
    """Keeps which topics are read."""

    def __init__(self, broker: MemoryBroker) -> None:
        super().__init__(broker)
        self.seen: set[str] = set()

    def open_reader(
        self,
        topics: Mapping[str, Sequence[int] | None],
        start: Mapping[str, Mapping[int, int]],
        *,
        committed: bool = True,
        resets: bool = True,
    ) -> MemoryReader:
        self.seen |= set(topics)
        return super().open_reader(topics, start, committed=committed, resets=resets)

    def read_all(self, topic: str) -> list[Record]:
        self.seen.add(topic)
        return super().read_all(topic)


@pytest.mark.parametrize("role", INSTANCES)
def test_a_device_server_reads_what_the_icd_says_and_writes_nothing_else(role: str) -> None:
    classes = {name: one for name, one in ICD.classes.items() if instance_role(one.instance) == role}
    clock = ManualClock(1_795_276_800.0)
    broker = MemoryBroker(clock)
    bus = SeenBus(broker)
    devices = {name: [one.device.format(**NUMBERS)] for name, one in classes.items()}
    service = Server(
        ICD,
        Settings(nodes=1, history=True, approvals="SdpMaster.Off"),
        devices,
        Sink(),
        bus,
        instance=role,
        clock=clock,
        versions={"versionId": "1"},
    )
    for topic in READ[role]:
        broker.append(Record(topic=topic, key=b"k", value=b"junk", partition=0))
    reader = service.event_loop._open()
    for _ in range(60):
        service.event_loop.cycle(reader)
        clock.sleep(0.5)
    # Others threads read the bytes of tables, and once what a mirror before has written; a standby reads heartbeats.
    beside = {topic for kind, topic in ((Contents, CALIBRATION), (Mirror, MODEL)) if service.find(kind)}
    beside.add(REPLAY)  # only in deployments that show one
    beside.add(SERVERS)
    beside |= {ACTIONS} if role == "alerts" else set()  # only once there is one among the alerts
    assert bus.seen | beside == READ[role]
    logs = {topic: broker.read(topic) for topic in ICD.topics}
    written = {topic for topic, log in logs.items() if any(one.value != b"junk" or dict(one.headers) for one in log)}
    assert {"snapshots", HISTORY} <= written <= WRITTEN[role]
    others = {topic for one in manifests() for topic, by in one.set_aside_by.items() if by != role}
    set_aside = {dict(one.headers)["dl.topic"].decode() for one in logs[DEAD_LETTERS]}
    assert set_aside == service.event_loop.accounts.keys() - others, "what nobody can read is set aside by one of them"


PROCESSES = {
    # by role: what it reads, what it writes
    "aggregate": (
        {*PLANS, POSITIONS, ACCOUNTS},
        {*(plan.window.summary for plan in PLANS.values()), ACCOUNTS, POSITIONS, HEARTBEATS, DEAD_LETTERS},
    ),
    "alerts-intake": ({PACKETS, POSITIONS, ACCOUNTS}, {ALERTS, ACCOUNTS, POSITIONS, HEARTBEATS, DEAD_LETTERS}),
    "alerts-notify": ({ALARMS, NOTIFICATIONS}, {NOTIFICATIONS, ALERTS, HEARTBEATS}),
    "olog": ({PAGE_ACTS, ACTIONS}, {ALERTS, HEARTBEATS}),
    "tables-assemble": ({CALIBRATION, TABLES, POSITIONS}, {TABLES, ACCOUNTS, POSITIONS, HEARTBEATS, DEAD_LETTERS}),
    "controller": (
        {COMMANDS, ACKS, STATE, HEARTBEATS, BLOCKS, RESERVATIONS},
        {ORDERS, ACKS, STATE, HEARTBEATS, BLOCKS, RESERVATIONS},
    ),
    "platform-services": ({RESERVATIONS}, {RESERVATIONS}),
    # After a crash, its spool reads which of its batches are on the log.
    "ingest-node": ({HeapStream.topic}, {HeapStream.topic, "ingest.buffers"}),
    "alert-source": (set(), {ALERTS, PACKETS}),
    "calibration-pipeline": ({TABLES}, {CALIBRATION}),
    "quality-pipeline": (set(), {QUALITY, "flagging"}),
    "storage": (set(), {"storage"}),
    "telescope-reader": ({MODEL, STREAMING}, set()),
    "logs-aggregate": (
        {LOGS, METRICS, POSITIONS, ACCOUNTS},
        {SUMS, ACCOUNTS, POSITIONS, HEARTBEATS, DEAD_LETTERS},
    ),
    "archive-run": ({HISTORY}, {REPORTS, ALERTS, HEARTBEATS}),
    "shipper": (set(), {LOGS, METRICS}),
    "operator-tool": (
        # What people did, for the page.
        {CALIBRATION, TABLES, PACKETS, RULES, RESERVATIONS, DEAD_LETTERS, REPLAY}
        | {COMMANDS, HELD_COMMANDS, REFUSALS, SETTINGS, ACTIONS, PAGE_ACTS}
        | {ALARMS, NOTIFICATIONS},
        {CALIBRATION, RULES, DEAD_LETTERS, ACCOUNTS, REPLAY, PAGE_ACTS},
    ),
}


def test_only_device_servers_write_commands() -> None:
    """Whatever else is on these topics passes for what a person gave, approved or was refused."""
    for topic in (COMMANDS, HELD_COMMANDS, REFUSALS):
        assert {*ICD.topics[topic].writers} == {"control", "subarray"}
        rights = planned(ICD, Settings(prefix="mid."))
        may_write = {one.principal for one in rights if (one.operation, one.name) == ("Write", f"mid.{topic}")}
        assert may_write - {"sdp-replay"} == {"sdp-control", "sdp-subarray"}  # a replay has a deployment of its own
    assert ICD.topics[ORDERS].writers == ("controller",)


def test_each_other_process_has_its_topics() -> None:
    of_all_topics = {role for role in ICD.roles if not READ[role] | WRITTEN[role]}
    assert {*PROCESSES, *INSTANCES} == set(ICD.roles) - of_all_topics
    assert all(ICD.roles[role].every_topic for role in of_all_topics)
    for role, (read, written) in PROCESSES.items():
        if ICD.roles[role].side == "facade" and role not in ("alerts-notify", "olog"):  # they refuse to run there
            read = read | {REPLAY}  # only in deployments that show one
            if ICD.roles[role].transactional_id:  # it looks for a transaction of its own that a broker left open
                read |= written - {HEARTBEATS}
        assert (READ[role], WRITTEN[role]) == (read, written), role
    assert {role for role in INSTANCES if ALARMS in WRITTEN[role]} == {"alerts"}, "one writer keeps the alarms"

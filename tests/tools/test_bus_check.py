"""`sdp-facade bus check`: what is found, and how much it matters."""

import logging
import re
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException

from facade.admin import bus_checks, cluster
from facade.admin.cluster import FoundTopic, GroupPosition, GroupState, _ClientLog
from facade.admin.topics import broker_settings, differences
from facade.kernel.bus.kafka.refusals import failing
from facade.kernel.bus.port import Record
from facade.kernel.clock import ManualClock
from facade.kernel.config import Settings
from facade.kernel.errors import BusError
from facade.kernel.findings import DEGRADED, FAILED, NOTE, OK, UNKNOWN, overall
from facade.kernel.icd.load import load
from facade.kernel.runtime.heartbeats import Heard, heartbeat_record
from facade.sdp.messages import Heartbeat
from facade.tools import bus

ICD = load()
AWAY = ["kafka-1.example.org:9093"]
HERE = ["127.0.0.1:9092", "localhost:9093"]


def levels(found):
    return [one.level for one in found]


def test_what_is_missing_or_set_otherwise():
    heaps = ICD.topics["ingest.heaps"]
    settings = {"min.insync.replicas": "1", **broker_settings(heaps), "retention.ms": "1", "cleanup.policy": "compact"}
    texts = [*differences(heaps, FoundTopic(partitions=2, replicas=1, settings=settings), 1)]
    found = [
        *bus_checks.judge_topics(
            "t.",
            {"state": "UNKNOWN_TOPIC_OR_PART", "alerts": "TOPIC_AUTHORIZATION_FAILED"},
            {"ingest.heaps": texts, "flagging": [text for text in texts if "retention" in text]},
        )
    ]
    assert sorted((one.level, one.about) for one in found) == [
        (DEGRADED, "topics flagging, ingest.heaps"),
        (FAILED, "topic ingest.heaps"),
        (FAILED, "topic t.state"),
        (UNKNOWN, "topic alerts"),
    ]
    assert "sdp-facade topics create" in found[0].do


@pytest.mark.parametrize(
    ("state", "level"),
    [((0, 3, 3, 2), OK), ((0, 3, 2, 2), DEGRADED), ((0, 3, 1, 2), FAILED), ((1, 3, 3, 2), FAILED)],
)
def test_replicas(state, level):
    assert overall([*bus_checks.judge_replicas({"alerts": state})]) == level


def test_the_rights_that_a_role_lacks_are_named_with_the_command_that_gives_them():
    needs = bus_checks.needs_of(ICD, "aggregate")
    assert needs["ingest.heaps"] == {"READ", "DESCRIBE"}
    rights = {name: frozenset({"READ", "DESCRIBE"}) for name in ("accounts", "dead-letters")}
    rights = {**needs, **rights}
    (found,) = bus_checks.judge_rights("aggregate", needs, rights, "mid.")
    assert found.level == FAILED
    assert "lacks WRITE on topics accounts, dead-letters" in found.text
    assert "--operation WRITE --topic mid.accounts --topic mid.dead-letters" in found.do
    assert [*bus_checks.judge_rights("aggregate", needs, needs, "mid.")] == []


def test_a_topic_of_a_setting_is_needed_only_with_the_setting():
    for name, topic in ICD.topics.items():
        if topic.setting:
            without, used = (bus_checks.used_by(Settings(**{topic.setting: on}), ICD) for on in (False, True))
            assert {*used.topics} - {*without.topics} == {name}
    needs = bus_checks.needs_of(bus_checks.used_by(Settings(), ICD), "ingest")
    assert {*needs} == {
        "ingest.summary",
        "telemetry.summary",
        "snapshots",
        "heartbeats",
        "server-heartbeats",
        "dead-letters",
    }


@pytest.mark.parametrize(
    ("properties", "brokers", "expected"),
    [
        ({}, HERE, []),
        ({}, AWAY, [DEGRADED, DEGRADED]),
        ({"security.protocol": "SASL_PLAINTEXT"}, AWAY, [FAILED]),
        ({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512"}, AWAY, [DEGRADED]),
        ({"security.protocol": "SASL_SSL"}, AWAY, []),
        ({"security.protocol": "SSL"}, AWAY, [DEGRADED]),
        ({"security.protocol": "SSL", "ssl.certificate.location": "x"}, AWAY, []),
        ({"security.protocol": "SASL_SSL", "enable.ssl.certificate.verification": "false"}, AWAY, [FAILED]),
        ({"security.protocol": "SASL_SSL", "ssl.endpoint.identification.algorithm": "none"}, AWAY, [DEGRADED]),
    ],
)
def test_encryption(properties, brokers, expected):
    assert levels(bus_checks.judge_encryption(properties, brokers)) == expected


@pytest.mark.parametrize(
    ("place", "members", "level", "text"),
    [
        ((10, 0, 10, 0.0), 1, OK, ""),
        ((9, 0, 10, 999.0), 1, OK, ""),
        ((0, 0, 10, 980.0), 1, DEGRADED, "10 records behind, 20 s"),
        ((0, 0, 10, 999.0), 0, FAILED, "nobody takes its 10 records, the first for 1 s"),
        ((11, 0, 10, 0.0), 1, FAILED, "its place is 11, the topic ends at 10"),
        ((2, 5, 10, 999.0), 1, FAILED, "3 records were deleted before anybody took them"),
        ((0, 0, 10, 1000.0 - 1801.0), 1, FAILED, "deleted after 3600 s"),
    ],
)
def test_lag_is_told_in_records_and_seconds(place, members, level, text):
    *offsets, since = place
    state = GroupState(members, (GroupPosition("ingest.heaps", 0, *offsets, round(since * 1e6)),), frozenset())
    found = [*bus_checks.judge_lag(ICD, "aggregate", state, 1_000_000_000)]
    assert overall(found) == level
    assert text in "".join(one.text for one in found)


def test_heartbeats_that_are_none_are_left_out(monkeypatch):
    """Controllers of other teams write to this topic as well."""
    good = Heartbeat(component="a", incarnation="1.000-h-0", devices=[], time=0, interval=1.0, role="server")
    deep = b'{"more":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    values = [None, b"", b"\xff", b"[]", deep, deep[:1000], heartbeat_record(good).value]
    records = [Record(topic="heartbeats", key=b"a", value=value) for value in values]
    monkeypatch.setattr(bus.admin, "newest_records", lambda *_: records)
    assert [one.heartbeat for one in bus._heard(None)] == [good]


def test_processes_are_shown_with_their_hosts():
    """Of a process that was replaced or has ended nothing is shown, and of a foreign one no time."""

    def heard(component, host, began, at, **changes):
        more = {"role": "server", "incarnation": f"{began:.3f}-{host}-ab12cd34"} | changes
        return Heard(Heartbeat(component=component, devices=[], time=0, interval=1.0, **more), round(at * 1e6))

    control, standby = "SdpFacade-control", "SdpFacade-control-standby"
    since = "1970-01-01 00:00:{:02} UTC".format
    found = bus.processes(
        [
            heard(control, "sdp-1", 5, 49.0, stopping=True),
            heard(standby, "sdp-2", 10, 49.0, stopping=True),
            heard(standby, "sdp-2", 10, 48.0),
            heard(control, "sdp-2", 10, 49.5),
            heard(standby, "sdp-1", 40, 50.0),
            heard("SdpFacade-alerts-standby", "sdp-1", 20, 50.0),
            heard("aggregate-0", "sdp-3", 30, 50.0, role="worker"),
            heard("aggregate-1", "sdp-3", 30, 45.0, role="worker"),
            heard("tm-controller", "sdp-3", 30, 50.0, role="controller"),
            heard("foreign", "", 0, 50.0, role="worker", incarnation="999999999999.000-x"),
        ]
    )
    assert [(one.about, one.text) for one in found] == [
        ("SdpFacade-alerts", f"stands by on sdp-1 since {since(20)}"),
        ("SdpFacade-control", f"runs on sdp-2 since {since(10)}; stands by on sdp-1 since {since(40)}"),
        ("aggregate-0", f"runs on sdp-3 since {since(30)}"),
        ("foreign", "runs on a host that its release does not tell"),
    ]


def test_clocks():
    found = [*bus_checks.judge_clocks({"fine": 0.9, "this host": -2.0, "node": 30.0})]
    assert [(one.level, one.about, one.text) for one in found] == [
        (DEGRADED, "clock of this host", "2.0 s behind the broker's"),
        (FAILED, "clock of node", "30.0 s ahead of the broker's"),
    ]


@pytest.mark.parametrize(
    ("apis", "expected"),
    [
        ({}, [UNKNOWN]),
        ({"Metadata": 13, "EndTxn": 5, "InitProducerId": 5}, []),
        ({"Metadata": 12, "EndTxn": 3, "InitProducerId": 4}, [NOTE]),
        ({"Metadata": 9, "EndTxn": 3, "InitProducerId": 4}, [DEGRADED]),
        ({"Metadata": 9}, [FAILED]),
    ],
)
def test_features_of_the_brokers(apis, expected):
    assert levels(bus_checks.judge_features(apis)) == expected


def test_what_brokers_can_is_heard_from_the_client():
    apis = _ClientLog()
    apis.logger.log(logging.DEBUG, "APIVERSION [x]: host:1/bootstrap:   ApiKey EndTxn (26) Versions 0..5")
    apis.logger.log(logging.DEBUG, "FEATURE [x]: something else")
    assert apis.apis == {"EndTxn": 5}


BROKER = "FAIL [c] [thrd:sasl_ssl://b:1/bootstrap]: sasl_ssl://b:1/bootstrap: "
CONNECTED = (
    "FEATURE [c] [thrd:b:1/bootstrap]: b:1/bootstrap: Updated enabled protocol features +ApiVersion to ApiVersion"
)
AWAY_NOW = "Connect to ipv4#127.0.0.1:9 failed: Connection refused (after 0ms in state CONNECT)"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "no broker answers there; start it, or correct KAFKA_BOOTSTRAP (it cannot be reached)"),
        ([BROKER + AWAY_NOW], "no broker answers there; start it, or correct KAFKA_BOOTSTRAP (Connect to"),
        (
            [f"{BROKER}Failed to resolve 'b:1': Name or service not known (after 3ms in state CONNECT)"],
            "KAFKA_BOOTSTRAP",
        ),
        (
            [
                BROKER + AWAY_NOW,
                f"{BROKER}SASL authentication error: Authentication failed (after 1ms in state AUTH_REQ)",
            ],
            "refuses this login; correct sasl.username and sasl.password (SASL authentication error: Auth",
        ),
        (
            [f"{BROKER}SASL PLAIN mechanism handshake failed: Broker: Unsupported SASL mechanism"],
            "correct sasl.mechanism",
        ),
        ([f"{BROKER}SSL handshake failed: certificate verify failed: broker certificate"], "correct ssl.ca.location"),
        ([f"{BROKER}SSL handshake failed: connecting to a PLAINTEXT broker listener?"], "correct security.protocol"),
        ([CONNECTED], "no broker answers it; correct security.protocol, or see if the broker hangs"),
    ],
)
def test_why_no_broker_serves_a_client(monkeypatch, lines, said):
    class Client:
        def __init__(self, _, own):
            self.logger = own["logger"]

        def list_topics(self, timeout):
            raise KafkaException(KafkaError(KafkaError._TRANSPORT, "Local: Broker transport failure"))

        def poll(self, timeout):
            for line in lines:
                self.logger.error("%s", line)

    connection = SimpleNamespace(bootstrap="b:1", producer=Client)
    with pytest.raises(BusError, match=re.escape(said)):
        cluster.describe_cluster(connection)


def test_a_broker_that_is_lost_between_two_answers_is_an_error_of_the_bus(monkeypatch):
    """It was a traceback."""

    def offsets_for_times(*_, timeout):
        raise KafkaException(KafkaError(KafkaError._TRANSPORT, "broker is gone"))

    consumer = SimpleNamespace(offsets_for_times=offsets_for_times, close=lambda: None)
    connection = SimpleNamespace(
        prefix="t.",
        bootstrap="kafka:9092",
        topic="t.{}".format,
        admin=lambda: SimpleNamespace(describe_consumer_groups=None),
        consumer=lambda *_: consumer,
    )
    described = SimpleNamespace(members=[], authorized_operations=[])
    monkeypatch.setattr(cluster, "ask_coordinator", lambda *_, **__: described)
    monkeypatch.setattr(cluster, "_committed", lambda *_: {("ingest.heaps", 0): 7})
    with pytest.raises(BusError, match=r"t\.aggregate"):
        cluster.describe_group(connection, "aggregate")


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (KafkaError.GROUP_AUTHORIZATION_FAILED, "give this principal Describe"),
        (KafkaError.NOT_COORDINATOR, "ask again"),
        (KafkaError.COORDINATOR_LOAD_IN_PROGRESS, "ask again"),
        (KafkaError.COORDINATOR_NOT_AVAILABLE, "ask again"),
    ],
)
def test_only_a_missing_right_is_remedied_by_a_right(code, remedy):
    """While coordinators loaded, after a broker was lost, the advice was to give rights."""
    with pytest.raises(BusError) as raised, failing("group aggregate"):
        raise KafkaException(KafkaError(code))
    assert bus.remedy_of(raised.value).startswith(remedy)


def test_no_new_heartbeat_is_read_from_a_broker_that_is_lost(monkeypatch):
    clock = ManualClock(100.0)
    ends = iter(range(1000))

    def find_range(*_):
        clock.sleep(0.5)
        return {0: (0, next(ends))}

    monkeypatch.setattr(bus.admin, "find_range", find_range)
    monkeypatch.setattr(bus.admin, "newest_records", lambda *_: [])
    assert bus._own_clock(SimpleNamespace(clock=clock)) is None

"""A broker with TLS, logins and rights: each role can do what the ICD says and nothing else, and the facade works."""

import json
import os
import re
import ssl
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import tango
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from facade.admin import rights
from facade.admin.access import create_acls, read_acls
from facade.admin.cluster import describe_cluster
from facade.admin.quotas import name_of
from facade.admin.rights import Acl
from facade.admin.topics import create_topics
from facade.flows.commands.messages import (
    AckMessage,
    CommandMessage,
    HeartbeatMessage,
    ack_record,
    decode_ack,
    decode_command,
    order_id,
    order_record,
)
from facade.infra import local
from facade.infra.security import ADMINISTRATOR, Security
from facade.kernel.bus.kafka.admin import ask_coordinator
from facade.kernel.bus.kafka.bus import KafkaBus
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.port import Record
from facade.kernel.bus.signatures import PARENT_HEADER, SIGNATURE, Signatures
from facade.kernel.clock import SystemClock
from facade.kernel.config import ControllerKey, Settings
from facade.kernel.errors import BusError
from facade.kernel.icd.load import load
from facade.kernel.icd.topic_model import READER
from facade.sdp.device_state import StateMessage, state_record
from tests.support import topics
from tests.support.alerting import alert
from tests.support.deployment import Deployment, await_totals, subarray_device
from tests.support.issuer import allowed_urls, broker_properties, client_settings, issuer
from tests.support.processes import Running
from tests.support.waiting import HANG, until

pytestmark = [pytest.mark.kafka, pytest.mark.tango, pytest.mark.xdist_group("secured")]

ICD = load()
OWN_GROUP = {"controller": ["simulated-controller"]}
GROUPS = {READER, *OWN_GROUP["controller"], *(role.group for role in ICD.roles.values() if role.group)}
REFUSED = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


SECRETS = {name_of(role): f"a secret of {role}" for role in ("aggregate", "storage")}
"""Secrets of the clients of the issuer of tokens."""
LIFETIMES = {name_of("storage"): 3}
"""Lifetime of their tokens [s]."""
GIVEN = Counter[str]()
"""Number of their tokens."""


@dataclass
class Secured:
    """A secured broker, on which deployments get their topics and their rights."""

    endpoints: local.Endpoints
    security: Security
    issuer: str
    """Address of the issuer of tokens."""

    def settings(self, user: str, prefix: str) -> Settings:
        """Return the settings of a user, from the file that the broker's start has made."""
        found = msgspec.toml.decode(self.security.settings_of(user).read_bytes(), type=Settings)
        return msgspec.structs.replace(found, prefix=prefix, history=True)

    def grant(self, prefix: str, *, replay: bool = True) -> list[Acl]:
        """Make the topics of a deployment, and give all roles their rights."""
        settings = self.settings(ADMINISTRATOR, prefix)
        connection = Connection(settings)
        create_topics(connection, ICD.topics)
        plan = rights.planned(ICD, msgspec.structs.replace(settings, replay=replay), OWN_GROUP)
        create_acls(connection, plan)
        # The controller confirms a rule, and the broker hears of it a moment later.
        until(lambda: not rights.missing(plan, read_acls(connection)), "the broker knows all rights")
        assert rights.surplus(plan, read_acls(connection)) == []
        return plan


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    state_dir = tmp_path_factory.mktemp("secured")
    secure = Security.secure
    with issuer(SECRETS, GIVEN, LIFETIMES) as address, pytest.MonkeyPatch.context() as patch:

        def also_by_tokens(self: Security, properties: Path) -> None:
            secure(self, properties)
            with properties.open("a") as file:
                file.writelines(f"{name}={value}\n" for name, value in broker_properties(address, "clients").items())

        patch.setattr(Security, "secure", also_by_tokens)
        patch.setenv("JAVA_TOOL_OPTIONS", f"{os.environ['JAVA_TOOL_OPTIONS']} {allowed_urls(address)}")
        try:
            endpoints = local.up(local.LocalOptions(state_dir=state_dir, secure=True))
            assert endpoints.security is not None
            yield Secured(endpoints, endpoints.security, address)
        finally:
            local.down(state_dir, wipe=True)


NO_TLS = dict.fromkeys(("ssl.ca.pem", "sasl.mechanism", "sasl.username", "sasl.password"), "")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"sasl.password": "wrong"}, "refuses this login; correct sasl.username and sasl.password"),
        ({"sasl.username": "nobody"}, "refuses this login; correct sasl.username and sasl.password"),
        ({"sasl.mechanism": "PLAIN"}, "correct sasl.mechanism"),
        ({"ssl.ca.pem": ""}, "certificate is not trusted; correct ssl.ca.location"),
        ({"security.protocol": "PLAINTEXT", **NO_TLS}, "no broker answers it; correct security.protocol"),
    ],
)
def test_a_wrong_login_protocol_or_ca_is_not_called_a_broker_that_is_away(
    secured: Secured, monkeypatch: pytest.MonkeyPatch, changed: dict[str, str], said: str
) -> None:
    monkeypatch.setattr("facade.kernel.bus.kafka.timeouts.COMMAND", 4.0)
    settings = secured.settings(ADMINISTRATOR, "r.")
    kafka = {name: value for name, value in (settings.kafka | changed).items() if value}
    with pytest.raises(BusError, match=re.escape(said)):
        describe_cluster(Connection(msgspec.structs.replace(settings, kafka=kafka)))


@pytest.fixture(scope="module")
def plan(secured: Secured) -> list[Acl]:
    return secured.grant("r.")


def is_refused(error: KafkaException, *other: int) -> bool:
    """Return whether the broker has refused, or has given some other answer that is expected."""
    code = error.args[0].code()
    if code not in {*REFUSED, *other}:
        raise error
    return code in REFUSED


class Client:
    """Does on the broker what a user can, with plain clients."""

    def __init__(self, settings: Settings) -> None:
        self._prefix = settings.prefix
        self._config: dict[str, Any] = {"bootstrap.servers": settings.bootstrap, "log_level": 0, **settings.kafka}
        self.admin = AdminClient(self._config)

    def writable(self) -> set[str]:
        """Write to each topic; return those that took it."""
        found, failed = set[str](), set[int]()
        producer = Producer({**self._config, "acks": "all"})

        def done(error: KafkaError | None, message: Any) -> None:
            if error is None:
                found.add(message.topic().removeprefix(self._prefix))
            else:
                failed.add(error.code())

        for topic in ICD.topics:
            producer.produce(self._prefix + topic, b"x", b"k", partition=0, on_delivery=done)
        assert producer.flush(HANG) == 0
        assert failed <= REFUSED
        return found

    def readable(self) -> set[str]:
        """Read each topic that is shown to its end; return those that gave it. `on_topics` tries the others."""
        ended, refused = set[str](), set[str]()
        consumer = self._consumer(READER)
        shown = {name for name in consumer.list_topics(timeout=HANG).topics if name.startswith(self._prefix)}
        consumer.assign([TopicPartition(name, 0, 0) for name in shown])

        def all_told() -> bool:
            for message in consumer.consume(1000, 0.05):
                if (error := message.error()) is not None and message.topic():
                    code, topic = error.code(), message.topic().removeprefix(self._prefix)
                    ended.update([topic] if code == KafkaError._PARTITION_EOF else [])
                    refused.update([topic] if code in REFUSED else [])
            return len(ended | refused) == len(shown)

        until(all_told, "each topic is read or refused", every=0)
        consumer.close()
        assert not ended & refused
        return ended

    def commits(self, group: str, topic: str) -> bool:
        """Commit a place of a group; return whether it was taken."""
        consumer = self._consumer(group)
        try:
            consumer.commit(offsets=[TopicPartition(self._prefix + topic, 0, 0)], asynchronous=False)
        except KafkaException as error:
            return not is_refused(error)
        finally:
            consumer.close()
        return True

    def begins(self, transactional_id: str) -> bool:
        """Begin to write in transactions; return whether that was taken."""
        producer = Producer({**self._config, "transactional.id": self._prefix + transactional_id})
        try:
            producer.init_transactions(HANG)
        except KafkaException as error:
            return not is_refused(error)
        return True

    def on_topics(self) -> dict[str, set[str]]:
        """Return the operations that the broker says are this user's, by topic."""
        found = {}
        names = TopicCollection([self._prefix + topic for topic in ICD.topics])
        asked = self.admin.describe_topics(names, include_authorized_operations=True, request_timeout=HANG)
        for name, future in asked.items():
            try:
                found[name] = {one.name.title().replace("_", "") for one in future.result().authorized_operations}
            except KafkaException as error:
                is_refused(error)
        return found

    def sees_group(self, group: str) -> bool:
        try:
            ask_coordinator(self.admin.describe_consumer_groups, self._prefix + group, within=HANG)
        except KafkaException as error:
            return not is_refused(error, KafkaError.GROUP_ID_NOT_FOUND)
        return True

    def _consumer(self, group: str) -> Consumer:
        own = {"group.id": self._prefix + group, "enable.auto.commit": False, "enable.partition.eof": True}
        return Consumer({**self._config, **own, "fetch.wait.max.ms": 10})


@pytest.mark.parametrize("role", ICD.roles)
def test_a_role_can_do_what_the_icd_says_and_nothing_else(secured: Secured, plan: list[Acl], role: str) -> None:
    acls = [one for one in plan if one.principal == name_of(role)]

    def names(kind: str, *operations: str) -> set[str]:
        found = [one for one in acls if one.kind == kind and (one.operation in operations or not operations)]
        return {one.name.removeprefix("r.") for one in found}

    client = Client(secured.settings(name_of(role), "r."))
    reads, writes = names("topic", "Read"), names("topic", "Write")
    assert client.writable() == writes
    assert client.readable() == reads
    assert {topic: told - {"Describe"} for topic, told in client.on_topics().items()} == {
        f"r.{topic}": {one.operation for one in acls if one.kind == "topic" and one.name == f"r.{topic}"} - {"Describe"}
        for topic in names("topic")
    }
    assert {group for group in GROUPS if client.sees_group(group)} == names("group")
    # To a group that is not shown the client looks for a coordinator for ever.
    joined = names("group", "Read")
    assert {group for group in names("group") if client.commits(group, min(reads, default=""))} == joined
    own_id = ICD.roles[role].transactional_id.replace("*", "0")
    for one in {own_id, "aggregate-1" if role != "aggregate" else "alerts-intake-1"} - {""}:
        assert client.begins(one) == (one == own_id)


def test_whoever_has_no_password_gets_nowhere(secured: Secured) -> None:
    settings = secured.settings("sdp-control", "r.")
    stranger = {**settings.kafka, "sasl.password": "guessed"}
    failures: list[KafkaError] = []
    client = Producer(
        {"bootstrap.servers": settings.bootstrap, "log_level": 0, "error_cb": failures.append, **stranger}
    )

    def is_refused() -> bool:
        client.poll(0.05)
        return any(one.code() == KafkaError._AUTHENTICATION for one in failures)

    until(is_refused, "the login is refused")
    plain = Producer({"bootstrap.servers": settings.bootstrap, "log_level": 0})
    with pytest.raises(KafkaException):
        plain.list_topics(timeout=1.0)


def test_a_role_logs_in_by_a_token_of_an_issuer_and_has_its_rights(secured: Secured, plan: list[Acl]) -> None:
    role, name = ICD.roles["aggregate"], name_of("aggregate")
    settings = secured.settings(name, "r.")
    common = {key: value for key, value in settings.kafka.items() if not key.startswith("sasl.")}

    def by_token(secret: str) -> dict[str, str]:
        return common | client_settings(secured.issuer, name, secret)

    client = Client(msgspec.structs.replace(settings, kafka=by_token(SECRETS[name])))
    writes = {one.name.removeprefix("r.") for one in plan if (one.principal, one.operation) == (name, "Write")}
    assert client.writable() == writes & set(ICD.topics)
    assert client.begins(role.transactional_id.replace("*", "0"))
    failures: list[KafkaError] = []
    stranger = {"bootstrap.servers": settings.bootstrap, "log_level": 0, "error_cb": failures.append}
    refused = Producer({**stranger, **by_token("guessed")})

    def is_refused() -> bool:
        refused.poll(0.05)
        return any(one.code() == KafkaError._AUTHENTICATION for one in failures)

    until(is_refused, "a wrong secret gets no token")


def test_a_token_is_renewed_while_a_client_writes(secured: Secured, plan: list[Acl]) -> None:
    """A connection lasts as long as its token: the client logs in again with a new one, and no record is refused."""
    name = name_of("storage")
    settings = secured.settings(name, "r.")
    common = {key: value for key, value in settings.kafka.items() if not key.startswith("sasl.")}
    login = common | client_settings(secured.issuer, name, SECRETS[name])
    producer = Producer({"bootstrap.servers": settings.bootstrap, "log_level": 0, **login})
    answers: list[KafkaError | None] = []

    def write() -> int:
        """Write a record, and return the number of tokens so far."""
        producer.produce("r.storage", b"x", on_delivery=lambda error, _: answers.append(error))
        assert producer.flush(HANG) == 0
        return GIVEN[name]

    until(lambda: write() > 2, "a third token, which comes after the end of the first one", every=0.2)
    write()
    assert set(answers) == {None}


class SecuredDeployment(Deployment):
    """A deployment of which each process logs in as its role."""

    def __init__(self, secured: Secured, folder: Path, **options: Any) -> None:
        super().__init__(secured.endpoints, folder, **options)
        self._security = secured.security
        administrator = secured.settings(ADMINISTRATOR, self.prefix)
        self.settings = msgspec.structs.replace(self.settings, kafka=administrator.kafka)

    def start(self, name: str, argv: list[str], *, ends: bool = False, **changes: str) -> Running:
        role = "ingest-node" if name == "simulate" else re.sub(r"-\d+$", "", name)
        file = {"SDP_FACADE_CONFIG": str(self._security.settings_of(name_of(role)))} if role in ICD.roles else {}
        return super().start(name, argv, ends=ends, **{**file, **changes})


def certificate_of(secured: Secured) -> str:
    host, _, port = secured.endpoints.bootstrap.partition(":")
    return ssl.get_server_certificate((host, int(port)))


def takes(deployment: Deployment, command: str) -> bool:
    """Call a command; return whether it was taken. A server that has just started refuses it."""
    try:
        deployment.proxy(subarray_device(1)).command_inout(command)
    except tango.DevFailed:
        return False
    return True


def test_the_facade_works_on_it_also_when_the_certificate_is_renewed(secured: Secured, tmp_path: Path) -> None:
    without = "calibration,quality,mirror,logs,alerts-intake,tables-assemble,logs-aggregate"
    with SecuredDeployment(secured, tmp_path, nodes=2, subarrays=1, without=without) as deployment:
        secured.grant(deployment.prefix)
        deployment.enter_devices()
        deployment.worker()
        deployment.server("alerts", ready=False)
        deployment.serve()
        deployment.controller()
        until(lambda: takes(deployment, "On"), "a command is taken")
        before = certificate_of(secured)
        local.renew_certificates(secured.endpoints.state_dir)
        until(lambda: certificate_of(secured) != before, "the broker shows its new certificate")
        await_totals(deployment, deployment.simulate("--rate", 200, "--seconds", 2).finish())
        source = secured.settings("sdp-alert-source", deployment.prefix)
        topics.send_records(source.bootstrap, deployment.prefix, [alert(condition="storageLow")], source.kafka)
        until(lambda: deployment.read_one("mid-sdp/alerts/0", "storageLow"), "the alert is shown")
        history = json.loads(deployment.proxy(subarray_device(1)).GetCommandHistory(1))
        until(lambda: deployment.executions(), "the controller executes the command")
        assert history[0]["name"] == "On"
        texts = [process.text for process in deployment.processes.started]
        secrets = [secured.settings(name_of(role), "").kafka["sasl.password"] for role in ICD.roles]
        assert not [one for one in secrets for text in texts if one in text]
        assert not [text for text in texts if "AUTHORIZATION_FAILED" in text]


ALERTS, MASTER, SUBARRAY = "mid-sdp/alerts/0", "mid-sdp/control/0", subarray_device(1)
CONDITION, SOURCE = "storageLow", "somebody"
MEANT = {
    ("alerts", "alert-actions", "action"), ("control", "settings", "mode"), ("subarray", "settings", "mode"),
}  # fmt: skip
"""Records that a role may write and mean; all others are tried."""


def in_the_name_of_others(role: str) -> dict[str, tuple[str, bytes]]:
    """Return records by hand that a role is not to mean: an action of an operator, a mode and a state."""
    now_us = SystemClock().now_us()
    device = {
        "schema": "state/1",
        "device": SUBARRAY,
        "time": now_us,
        "origin": SUBARRAY,
        "client": "this host (sdp-1)",
    }
    action = {
        "schema": "alert-action/1", "id": f"forged by {role}", "action": "REMOVE_FROM_SERVICE", "condition": CONDITION,
        "source": SOURCE, "operator": "anna", "comment": "c", "time": now_us, "origin": ALERTS, "client": "this host",
    }  # fmt: skip
    return {
        kind: (key, msgspec.json.encode(content))
        for kind, key, content in (
            ("action", CONDITION, action),
            ("mode", f"{SUBARRAY}/adminMode", {**device, "attribute": "adminMode", "value": "OFFLINE"}),
            ("state", f"{SUBARRAY}/obsState", {**device, "attribute": "obsState", "value": "FAULT"}),
        )
    }


def forge(settings: Settings, role: str) -> tuple[set[str], set[tuple[str, int]]]:
    """Write these records to each topic; return the topics that took some, and the places of those on them."""
    producer = Producer({"bootstrap.servers": settings.bootstrap, "log_level": 0, "acks": "all", **settings.kafka})
    took, places = set[str](), set[tuple[str, int]]()

    def done(error: KafkaError | None, message: Any) -> None:
        topic = message.topic().removeprefix(settings.prefix)
        if error is None:
            took.add(topic)
            places.add((topic, message.offset()))
        else:
            assert error.code() in REFUSED, (role, topic, error)

    for topic in ICD.topics:
        for kind, (key, value) in in_the_name_of_others(role).items():
            if (role, topic, kind) not in MEANT:
                producer.produce(settings.prefix + topic, value, key, partition=0, on_delivery=done)
    assert producer.flush(HANG) == 0
    return took, places


def test_nobody_acts_in_the_name_of_others(secured: Secured, tmp_path: Path) -> None:
    """Of each role and topic: the broker refuses the record, or its readers set it aside; no alarm and mode changes."""
    without = "calibration,quality,mirror,logs,alerts-intake,tables-assemble,logs-aggregate"
    with SecuredDeployment(secured, tmp_path, nodes=2, subarrays=1, without=without) as deployment:
        plan = secured.grant(deployment.prefix, replay=False)
        deployment.enter_devices()
        deployment.server("alerts", ready=False)
        deployment.serve()
        source = secured.settings("sdp-alert-source", deployment.prefix)
        raised = alert(condition=CONDITION, source=SOURCE)
        topics.send_records(source.bootstrap, deployment.prefix, [raised], source.kafka)

        def shown() -> list[Any]:
            alarms = [one for one in json.loads(deployment.proxy(ALERTS).GetAlarms()) if one["source"] == SOURCE]
            modes = [deployment.read_one(device, "adminMode") for device in (MASTER, SUBARRAY)]
            return [
                [(one["state"], one.get("operator")) for one in alarms],
                *modes,
                deployment.read_one(SUBARRAY, "obsState"),
            ]

        until(lambda: deployment.read_one(ALERTS, CONDITION), "the alert is shown")
        until(lambda: all(one not in (None, []) for one in shown()), "alarm, modes and obsState are shown")
        before, forged = shown(), set[tuple[str, int]]()
        assert before[0] == [("UNACK", None)]
        for role in ICD.roles:
            took, places = forge(secured.settings(name_of(role), deployment.prefix), role)
            rights_of_it = [one for one in plan if (one.principal, one.operation) == (name_of(role), "Write")]
            assert took == {one.name.removeprefix(deployment.prefix) for one in rights_of_it} & set(ICD.topics), role
            forged |= places

        def unused() -> set[tuple[str, int]]:
            letters = [dict(one.headers) for one in bus.read_all("dead-letters")]
            aside = {(one["dl.topic"].decode(), int(one["dl.offset"])) for one in letters if "dl.topic" in one}
            return {
                one for one in forged - aside if one[0] in ("alerts", "state", "settings", "commands", "command-acks")
            }

        bus = KafkaBus(Connection(deployment.settings), client="test")
        until(lambda: not unused(), "each record on what these device servers read is a dead letter")
        assert shown() == before


def about_others(parent: str, number: int = 1) -> list[Record]:
    """Return what a controller is not to say: an outcome, a state and an order of others."""
    now_us = round(SystemClock().now() * 1e6)
    times = {"issued": now_us, "not_after": now_us + 30_000_000, "deadline": now_us + 60_000_000}
    order = CommandMessage(
        id=order_id(parent, SUBARRAY, "On", number), device=SUBARRAY, command="On", argument=None, transaction_id="t",
        ceiling=now_us + 60_000_000, repeatable=True, origin=CONTROLLER, parent=parent, **times,
    )  # fmt: skip
    ack = AckMessage(id=parent, device=MASTER, command="On", status="COMPLETED", time=now_us, origin=CONTROLLER)
    state = StateMessage(device=SUBARRAY, attribute="obsState", value="FAULT", time=now_us, origin=CONTROLLER)
    return [order_record(order), ack_record(ack), state_record(state)]


CONTROLLER = "controller-of-sdp"


def test_a_controller_says_nothing_about_devices_whose_key_it_does_not_have(secured: Secured, tmp_path: Path) -> None:
    without = "alerts,calibration,quality,mirror,logs,alerts-intake,tables-assemble,logs-aggregate"
    with SecuredDeployment(secured, tmp_path, nodes=2, subarrays=1, without=without) as deployment:
        secured.grant(deployment.prefix)
        deployment.enter_devices()
        deployment.serve()
        master = deployment.proxy(MASTER)
        own = secured.settings("sdp-controller", deployment.prefix)
        foreign = ControllerKey(devices="*", key="the key of the controller of other devices")
        logins = {"no key": (), "another key": (foreign,), "own key": own.controller_keys}
        writers = {
            name: KafkaBus(Connection(msgspec.structs.replace(own, controller_keys=keys)), client="test").writer()
            for name, keys in logins.items()
        }
        given: list[str] = []

        def is_given() -> bool:
            with suppress(tango.DevFailed):
                given.append(master.command_inout("On")[1][0])
            return bool(given)

        until(is_given, "a command is taken")
        (parent,) = given
        beat = HeartbeatMessage(
            component=CONTROLLER, incarnation="1", time=round(SystemClock().now() * 1e6), interval=1.0, devices=[MASTER]
        )
        ack = AckMessage(id=parent, device=MASTER, command="On", status="ACCEPTED", time=beat.time, origin=CONTROLLER)
        heartbeat = Record(topic="heartbeats", key=CONTROLLER.encode(), value=msgspec.json.encode(beat))
        writers["own key"].send_all_durably([heartbeat, ack_record(ack)], HANG)

        def shown() -> tuple[str, Any]:
            return json.loads(master.GetCommand(parent))["status"], deployment.read_one(SUBARRAY, "obsState")

        until(lambda: shown()[0] == "ACCEPTED", "the controller of SDP is believed")
        before, bus = shown(), KafkaBus(Connection(deployment.settings), client="test")
        for name in ("no key", "another key"):
            writers[name].send_all_durably(about_others(parent), HANG)

        def refused() -> Counter[str]:
            letters = [{key: value.decode() for key, value in one.headers} for one in bus.read_all("dead-letters")]
            return Counter(one["dl.topic"] for one in letters if one.get("dl.reason") == SIGNATURE)

        until(lambda: refused().total() == 6, "each of these records is a dead letter")
        assert refused() == dict.fromkeys(("orders", "command-acks", "state"), 2)
        assert shown() == before
        assert [decode_command(one.value).device for one in bus.read_all("commands")] == [MASTER]
        order, outcome, fault = about_others(parent)
        writers["own key"].send_durably(fault, HANG)
        until(lambda: shown()[1] != before[1], "with the key, the state is believed")
        writers["own key"].send_durably(order, HANG)

        def rejected() -> str:
            return next((one.text for one in acks() if one.status == "REJECTED"), "")

        def acks() -> list[AckMessage]:
            found = [decode_ack(one.value) for one in bus.read_all("command-acks")]
            return [one for one in found if isinstance(one, AckMessage)]

        until(rejected, "the key of the ordered device does not prove its superior")
        assert f"{PARENT_HEADER}: expected the signature of a controller of {MASTER}, got none" in rejected()
        assert len(bus.read_all("commands")) == 1
        order, *_ = about_others(parent, 2)
        signatures = Signatures(own.controller_keys, [order.topic])
        proven = replace(order, headers=signatures.sign_order(order, MASTER, SystemClock().now_us()))
        writers["own key"].send_durably(proven, HANG)
        until(lambda: len(bus.read_all("commands")) == 2, "with the key of its parent's device, the order is admitted")
        writers["own key"].send_durably(outcome, HANG)
        until(lambda: shown()[0] == "COMPLETED", "with the key, the outcome is believed")

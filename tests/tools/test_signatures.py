"""Only controllers of a device say what becomes of it: of a deployment with keys, nothing else counts."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from facade.flows.commands.messages import (
    AckMessage,
    CommandMessage,
    ack_record,
    command_record,
    order_id,
    order_record,
)
from facade.kernel.bus.dead_letters import dead_letter
from facade.kernel.bus.kafka.connection import Clients, Connection
from facade.kernel.bus.kafka.producer import KafkaSender, KafkaStreamWriter, KafkaWriter
from facade.kernel.bus.port import BusHealth, Record
from facade.kernel.bus.signatures import HEADER, PARENT_HEADER, SIGNATURE, Signatures, signed_topics
from facade.kernel.clock import NEVER, ManualClock, as_time
from facade.kernel.config import ControllerKey, Settings, make_settings
from facade.kernel.errors import ConfigError
from facade.kernel.icd.load import load
from facade.kernel.outcome import RecordRejected
from facade.sdp.device_state import StateMessage, state_record, states_of
from facade.tools.audit import dead_letter_entry
from facade.tools.exports import asyncapi
from tests.flows import test_admission
from tests.support.commanding import OTHER, SUBARRAY, Bench
from tests.support.controllers import FIRST, Life, Site
from tests.support.heaps import BASE_US
from tests.support.tm import SCAN

TOPICS = signed_topics(load())
OURS, THEIRS = "a key of the controller of 01, longer", "a key of the controller of 02, longer"
KEYS = (ControllerKey(devices=SUBARRAY, key=OURS), ControllerKey(devices=OTHER, key=THEIRS))
NOW = datetime.fromtimestamp(BASE_US / 1e6, UTC)


def signatures(**by_device: str) -> Signatures:
    keys = [ControllerKey(devices=f"mid-sdp/subarray/{name[1:]}", key=key) for name, key in by_device.items()]
    return Signatures(keys, TOPICS)


CONTROLLER, STRANGER = Signatures(KEYS[:1], TOPICS), signatures(_01=THEIRS)


def signed(record: Record, by: Signatures = CONTROLLER) -> Record:
    return replace(record, headers=by.sign(record, BASE_US))


def state(value: str, at_us: int, device: str = SUBARRAY, attribute: str = "obsState") -> Record:
    return state_record(StateMessage(device=device, attribute=attribute, value=value, time=at_us, origin="controller"))


RECORD = replace(state("READY", BASE_US), timestamp_us=BASE_US)


# What is signed, and what is refused


def test_the_signature_is_what_the_documents_say() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "controller-in-another-language.md").read_text()
    found = re.search(r"printf '(.+)' \| openssl dgst -sha256 -hmac '(.+)'\nSHA2-256\(stdin\)= (\w{64})\n", page)
    assert found is not None
    topic, record_key, value = found[1].split("\\n")
    record = Record(topic=topic, key=record_key.encode(), value=value.encode())
    by = Signatures([ControllerKey(devices="*", key=found[2])], TOPICS)
    assert by.sign(record, NEVER) == (("signature", found[3].encode()),)
    said = asyncapi.signed(load())["headers"]["properties"]["signature"]["description"]
    assert "topic without its prefix, a line feed, the key of the record, a line feed, and its value" in said


@pytest.mark.parametrize(
    ("record", "got"),
    [
        (signed(RECORD), ""),
        (signed(replace(RECORD, headers=((HEADER, b"old"), ("traceparent", b"00")))), ""),
        (RECORD, "none"),
        (signed(RECORD, STRANGER), "another one"),
        (replace(signed(RECORD), value=(RECORD.value or b"").replace(b"READY", b"FAULT")), "another one"),
        (replace(signed(RECORD), key=f"{SUBARRAY}/State".encode()), "another one"),
        (replace(signed(RECORD), topic="command-acks"), "another one"),
        (replace(RECORD, headers=((HEADER, b""),)), "another one"),
        (replace(RECORD, headers=((HEADER, b"\xff"), (HEADER, b"0" * 64))), "another one"),
        (replace(RECORD, value=None), "none"),
        (replace(RECORD, key=f"{OTHER}/obsState".encode()), ""),  # there is no key
        (replace(RECORD, key=None), ""),
        (replace(RECORD, topic="settings"), ""),
    ],
)
def test_a_record_counts_if_a_controller_of_its_device_has_signed_it(record: Record, got: str) -> None:
    found = CONTROLLER.refusal(record)
    expected = f"expected the signature of a controller of {SUBARRAY}, got {got}"
    assert found == (RecordRejected(SIGNATURE, "headers.signature", expected) if got else None)


def test_one_key_follows_another_and_the_log_before_the_first_one_counts() -> None:
    hour = timedelta(hours=1)
    first = ControllerKey(devices="mid-sdp/*", key=OURS, since=NOW, until=NOW + 3 * hour)
    second = ControllerKey(devices="mid-sdp/*", key=THEIRS, since=NOW + 2 * hour)
    both, old, new = (Signatures(keys, TOPICS) for keys in ((first, second), (first,), (second,)))

    def counts(record: Record, hours: float) -> bool:
        at = replace(record, timestamp_us=round((NOW + hours * hour).timestamp() * 1e6))
        return both.refusal(at) is None

    def signed_at(by: Signatures, hours: float) -> Record:
        return replace(RECORD, headers=by.sign(RECORD, as_time((NOW + hours * hour).timestamp())))

    assert signed_at(both, 1) == signed_at(old, 1)
    assert signed_at(both, 2.5) == signed_at(new, 2.5)
    assert counts(RECORD, -1), "it is older than the first key"
    assert [counts(RECORD, at) for at in (0, 1, 2.5, 4)] == [False] * 4
    assert [counts(signed_at(old, 1), at) for at in (1, 2.5, 4)] == [True, True, False]
    assert [counts(signed_at(new, 2.5), at) for at in (1, 2.5, 4)] == [False, True, True]
    assert signed_at(new, 1) == RECORD, "it is not valid yet"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"devices": "*", "key": "short"}, "length >= 32"),
        ({"devices": "*"}, "missing required field `key`"),
        ({"devices": "*", "key": OURS, "since": "2026-11-28T00:00:00"}, "timezone"),
    ],
)
def test_a_wrong_key_is_told_and_not_shown(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        make_settings({"controller_keys": [given]}, "site.toml")
    assert OURS not in str(error.value)
    settings = make_settings({"controller_keys": [{"devices": "*", "key": OURS}]}, "site.toml")
    assert OURS not in f"{settings!r} {settings.controller_keys!r} {settings.controller_keys}"


def test_a_process_with_a_key_signs_what_it_writes_and_not_what_it_copies() -> None:
    sent: list[tuple[str, bytes, Any]] = []

    class Client(SimpleNamespace):
        def __init__(self, config: object) -> None:
            super().__init__()

        def produce(self, topic: str, value: bytes, key: bytes, *, headers: Any = (), **_: object) -> None:
            sent.append((topic, key, dict(headers).get(HEADER)))

        def poll(self, _: float) -> int:
            return 0

    settings = Settings(prefix="t.", controller_keys=KEYS[:1])
    connection = Connection(settings, clock=ManualClock(BASE_US / 1e6), clients=Clients(producer=Client))
    writer = KafkaWriter(connection, health=BusHealth(), client="test")
    others = state("READY", BASE_US, OTHER)
    letter = dead_letter(RECORD, RecordRejected("schema", "$", "d"), by="test")
    for record in (RECORD, others, letter):
        writer.send(record)
    writer.post([RECORD])
    KafkaSender(connection, health=BusHealth(), client="test").post(RECORD)
    KafkaStreamWriter(connection, health=BusHealth(), client="test").send_many("state", [RECORD.key], [RECORD.value])
    ours = dict(signed(RECORD).headers)[HEADER]
    assert [signature for _, _, signature in sent] == [ours, None, None, ours, ours, None]


# Device servers and controllers


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def server(bench: Bench) -> Any:
    server = bench.server(settings=Settings(controller_keys=KEYS))
    for attribute, value in {"State": "ON", "obsState": "READY"}.items():
        bench.broker.append(signed(state(value, round(bench.clock.now() * 1e6), attribute=attribute)))
    server.cycle()
    return server


def reasons(bench: Bench) -> list[bytes]:
    return [dict(one.headers)["dl.reason"] for one in bench.broker.read("dead-letters")]


@pytest.mark.parametrize("by", [Signatures((), ()), STRANGER])
def test_a_state_and_an_outcome_of_another_controller_change_nothing(bench: Bench, server: Any, by: Signatures) -> None:
    id = server.give("Scan", SCAN)
    server.cycle()
    now_us = round(bench.clock.now() * 1e6)
    for status in ("ACCEPTED", "COMPLETED", "TIMED_OUT"):
        ack = AckMessage(id=id, device=SUBARRAY, command="Scan", status=status, time=now_us, origin="controller")
        bench.broker.append(signed(ack_record(ack), by))
    bench.broker.append(signed(state("FAULT", now_us), by))
    before = server.shows("obsState")
    server.cycle()
    assert (server.shows("obsState"), server.tracker.find(id).status) == (before, "SENT")
    assert reasons(bench) == [b"signature"] * 4
    entries = [found for one in bench.broker.read("dead-letters") if (found := dead_letter_entry(one))]
    assert {(one.act, one.target, one.kind) for one in entries} == {
        ("command-acks refused", SUBARRAY, "refusal"),
        ("state refused", f"{SUBARRAY}/obsState", "refusal"),
    }
    bench.broker.append(signed(ack_record(msgspec.structs.replace(ack, status="COMPLETED"))))
    server.cycle()
    assert server.tracker.find(id).status == "COMPLETED", "it is taken from its controller"


def test_records_of_the_past_that_are_put_on_their_topics_again_change_nothing(bench: Bench, server: Any) -> None:
    id = server.give("Scan", SCAN)
    server.cycle()
    for percent in (10, 60):
        bench.clock.sleep(1.0)
        now_us = round(bench.clock.now() * 1e6)
        ack = AckMessage(
            id=id, device=SUBARRAY, command="Scan", status="IN_PROGRESS", time=now_us, origin="c", progress=percent
        )
        bench.broker.append(signed(ack_record(ack)))
        bench.broker.append(signed(state("FAULT" if percent == 10 else "SCANNING", now_us)))
    server.cycle()
    shown = server.shows("obsState"), server.tracker.find(id).progress
    assert shown == ("SCANNING", 60)
    for topic in ("state", "command-acks"):
        for record in bench.broker.read(topic):
            bench.broker.append(replace(record, partition=-1))
            server.cycle()
            assert (server.shows("obsState"), server.tracker.find(id).progress) == shown
    again = bench.server(settings=Settings(controller_keys=KEYS), ready=False)
    assert again.shows("obsState") == "SCANNING", "after a restart as well"


def test_a_signed_state_that_is_refused_makes_no_later_one_late(bench: Bench, server: Any) -> None:
    now_us = round(bench.clock.now() * 1e6)
    bench.broker.append(signed(state("REDY", now_us + 3600_000_000)))
    bench.broker.append(signed(state("FAULT", now_us)))
    server.cycle()
    assert (server.shows("obsState"), reasons(bench)) == ("FAULT", [b"value"])


def test_the_replay_of_a_night_needs_no_keys(bench: Bench) -> None:
    server = bench.server(settings=Settings(controller_keys=KEYS, replay=True), ready=False, start=False)
    assert states_of(server.service).signatures.refusal(RECORD) is None


@pytest.mark.parametrize("by", [Signatures((), ()), STRANGER, CONTROLLER])
def test_an_order_counts_if_it_is_signed_for_its_device(by: Signatures) -> None:
    site = test_admission.Site(controller_keys=KEYS)
    parent = site.parent()
    site.broker.append(signed(order_of(site, parent), by))
    site.wait(5)
    assert len(site.admitted()) == (by is CONTROLLER)


SUPERIOR = Signatures([ControllerKey(devices=test_admission.SDP, key="a key of the controller of SDP, long")], TOPICS)


def order_of(site: test_admission.Site, parent: CommandMessage) -> Record:
    order = site.command(device=SUBARRAY, id=order_id(parent.id, SUBARRAY, "On", 1), parent=parent.id)
    return order_record(msgspec.structs.replace(order, origin="sdp"))


@pytest.mark.parametrize(
    ("by", "got"),
    [(SUPERIOR, ""), (None, "none"), (CONTROLLER, "another one"), (signatures(_01=OURS), "another one")],
)
def test_a_controller_cannot_order_its_devices_in_the_name_of_their_superior(by: Signatures | None, got: str) -> None:
    superior = ControllerKey(devices=test_admission.SDP, key="a key of the controller of SDP, long")
    site = test_admission.Site(controller_keys=(*KEYS, superior))
    parent = site.command()
    site.broker.append(command_record(parent))
    begun = AckMessage(
        id=parent.id, device=parent.device, command="On", status="ACCEPTED", time=site.now_us, origin="sdp"
    )
    site.broker.append(signed(ack_record(begun), SUPERIOR))
    record = order_of(site, parent)
    if by is not None:  # the key of the ordered device does not prove its superior, whichever device it is said to be
        device = test_admission.SDP if by is SUPERIOR else SUBARRAY
        record = replace(record, headers=by.sign_order(record, device, BASE_US))
    site.broker.append(signed(record))
    site.wait(5)
    assert len(site.admitted()) == (not got)
    if got:
        (ack,) = (ack for ack in site.acks() if ack.device == SUBARRAY)
        said = f"headers.{PARENT_HEADER}: expected the signature of a controller of {test_admission.SDP}, got {got}"
        assert (ack.status, ack.text) == ("REJECTED", f"order not admitted: {said}")
        assert len(site.broker.read("command-refusals")) == 1, "the audit lists it"


class SignedSite(Site):
    """A site whose bus signs what the controller writes; `forge` writes around it."""

    def __init__(self) -> None:
        super().__init__()
        self.forge = self.broker.append
        self.broker.append = lambda record: self.forge(signed(record))  # type: ignore[method-assign]
        self.say(State="ON", obsState="IDLE")
        self.clock.sleep(1.0)


@pytest.mark.parametrize("by", [Signatures((), ()), STRANGER, CONTROLLER])
def test_a_controller_believes_only_what_is_signed(by: Signatures) -> None:
    site = SignedSite()
    message = site.command(repeatable=False)
    ack = AckMessage(id=message.id, device=FIRST, command=message.command, status="COMPLETED", time=1, origin="c")
    site.forge(signed(ack_record(ack), by))
    site.forge(signed(state("FAULT", site.now_us, attribute="obsState"), by))
    site.repeat(message)
    life = Life(site, signatures=CONTROLLER).work()
    believes = life.loop._states.label(FIRST, "obsState") == "FAULT"
    assert (site.effects[message.id], believes) == ((0, True) if by is CONTROLLER else (1, False))


@pytest.mark.parametrize("hiding", [state("FAULT", BASE_US), replace(state("", BASE_US), value=None)])
def test_a_state_that_is_hidden_on_the_topic_is_written_again(hiding: Record) -> None:
    """The topic is compacted: it would keep only the record that no reader takes."""
    site = SignedSite()
    site.send()
    life = Life(site, signatures=CONTROLLER, handle=lambda call: call.report(obsState="READY")).work()
    life.step()
    before = site.broker.read("state")[-1]
    assert b'"READY"' in (before.value or b"")
    site.forge(hiding)
    for _ in range(3):
        life.step()
    *_, hidden, again = site.broker.read("state")
    assert (hidden.value, again.value) == (hiding.value, before.value)

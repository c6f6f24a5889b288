"""The simulated subarray: what each command changes, and where the data are to be sent."""

from collections import Counter
from typing import Any

import msgspec
import pytest

from facade.flows.blocks.source import BLOCKS
from facade.flows.commands.arguments import Arguments
from facade.flows.commands.messages import ACKS, AckMessage, CommandMessage, ack_record
from facade.flows.reservations.ledger import RESERVATIONS, read_reservation
from facade.kernel.clock import ManualClock
from facade.kernel.errors import ConfigError
from facade.sdk.controller.api import Rejected
from facade.sdk.controller.simulator.controller import CRASHED, ExecutionLine, SimulatedController
from facade.sdk.controller.simulator.faults import ControllerFault
from facade.sdk.controller.simulator.observation import COMMANDS, Subarray, receive_addresses
from tests.support.controllers import COMPONENT, DEVICES, FIRST, ICD, SECOND, Crash, Life, Site, live
from tests.support.simulated_bus import MemoryBus

WINDOW = {"spectral_window_id": "w", "count": 6000, "start": 0, "freq_min": 1.0, "freq_max": 2.0}
BLOCK: dict[str, Any] = {
    "eb_id": "eb-test-20261121-00001",
    "beams": [
        {"beam_id": "vis0", "function": "visibilities"},
        {"beam_id": "pss1", "function": "pulsar search", "search_beam_id": 1},
    ],
    "scan_types": [
        {"scan_type_id": ".default", "beams": {"vis0": {"channels_id": "wide", "polarisations_id": "all"}}},
        {"scan_type_id": "target:a", "derive_from": ".default", "beams": {"vis0": {"field_id": "a"}}},
        {"scan_type_id": "target:b", "derive_from": ".default", "beams": {"vis0": {"channels_id": "zoom"}, "pss1": {}}},
    ],
    "channels": [
        {"channels_id": "wide", "spectral_windows": [WINDOW, {**WINDOW, "start": 20_000, "count": 100}]},
        {"channels_id": "zoom", "spectral_windows": [{**WINDOW, "start": 8, "count": 2048, "stride": 4}]},
    ],
}  # fmt: skip
ARGUMENTS = {
    "AssignResources": {"resources": {"receptors": ["SKA002"]}, "execution_block": BLOCK},
    "ReleaseResources": {"resources": {"receptors": ["SKA001"]}},
    "Configure": {"scan_type": "target:a"},
    "Scan": {"scan_id": 5},
}


def test_every_command_leads_to_a_target_of_the_icd() -> None:
    """The model and the ICD's table know the same commands, states and attributes."""
    device_class = ICD.classes["SdpSubarray"]
    assert {command.name for command in device_class.commands} == set(COMMANDS)
    reported = {attribute.name for attribute in device_class.attributes if attribute.reported} | {"State"}
    before = Subarray(resources={"receptors": ["SKA001", "SKA002"]}, scan_types=("target:a",))
    for command in device_class.commands:
        changes = COMMANDS[command.name](before, ARGUMENTS.get(command.name, {}))
        assert changes[command.reports] in command.targets
        assert set(changes) <= reported
        assert list(changes)[-1] in ("obsState", "State")


def test_receive_addresses_follow_the_channels() -> None:
    found = receive_addresses(BLOCK, 3)
    assert set(found) == {"interface", "target:a", "target:b"}
    assert found["target:a"]["vis0"] == {
        "function": "visibilities",
        "host": [[0, "10.3.0.1"], [4096, "10.3.0.2"], [20_000, "10.3.0.3"]],
        "port": [[0, 9000, 1], [4096, 9000, 1], [20_000, 9000, 1]],
    }
    assert found["target:b"]["vis0"]["host"] == [[8, "10.3.0.4"], [4104, "10.3.0.5"]]
    assert found["target:b"]["pss1"] == {"function": "pulsar search", "search_beam_id": 1}
    Arguments(ICD).check("recvaddrs", msgspec.json.encode(found).decode())


def test_what_is_not_there_is_refused_unless_it_was_done_already() -> None:
    """A release that a crash has cut short finds its receptors gone."""
    argument = {"resources": {"receptors": ["SKA001"]}}
    with pytest.raises(Rejected, match=r"\$\.resources\.receptors: expected some of"):
        COMMANDS["ReleaseResources"](Subarray(), argument)
    assert COMMANDS["ReleaseResources"](Subarray(again=True), argument)["obsState"] == "EMPTY"
    with pytest.raises(Rejected, match=r"\$\.scan_type: expected one of a, got 'b'"):
        COMMANDS["Configure"](Subarray(scan_types=("a",)), {"scan_type": "b"})


def simulated(*, clock: Any = None, **options: Any) -> SimulatedController:
    chosen = {"faults": (), "report": None, "seed": 1, "speed": 1.0, **options}
    return SimulatedController(ICD, component=COMPONENT, clock=clock or ManualClock(), **chosen)


@pytest.mark.parametrize(
    ("kind", "ids"), [("duplicate-acks", ["7", "7"]), ("no-acks", []), ("wrong-ids", ["7-wrong"]), ("slow", ["7"])]
)
def test_acks_have_the_faults_that_were_asked_for(kind: str, ids: list[str]) -> None:
    """Other records have none."""
    site = Site()
    writer = simulated(faults=[ControllerFault(kind)]).through(MemoryBus(site.broker))
    ack = AckMessage(id="7", device=FIRST, command="Scan", status="COMPLETED", time=1, origin="x")
    writer.send(ack_record(ack))
    assert [found.id for found in site.acks()] == ids
    writer.send_durably(ack_record(ack), 1.0)
    assert [found.id for found in site.acks()] == ids * 2
    site.say(obsState="IDLE")
    assert len(site.broker.read(ACKS)) == 2 * len(ids)


@pytest.mark.parametrize(
    ("kind", "name", "executions", "outcome", "obs_state"),
    [
        ("crash-before", "End", 2, "COMPLETED", "IDLE"),
        ("crash-after", "End", 2, "COMPLETED", "IDLE"),
        ("crash-after", "Configure", 1, "FAILED", "READY"),
    ],
)
def test_it_dies_once_before_or_behind_the_effect(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, kind: str, name: str, executions: int, outcome: str, obs_state: str
) -> None:
    """A repeatable command is executed again; another one has failed, and nobody knows how far it came."""
    site, file, codes = Site(), tmp_path / "report.jsonl", list[int]()

    def end_process(code: int) -> None:
        codes.append(code)
        raise Crash

    monkeypatch.setattr("facade.sdk.controller.simulator.controller.os._exit", end_process)
    site.say(State="ON", scanTypes='["target:a"]', obsState="READY")
    message = site.send(name, argument=ARGUMENTS.get(name), repeatable=name == "End")
    for wanted in ("", outcome):
        made = simulated(faults=[ControllerFault(kind, name)], report=file, clock=site.clock)
        live(site, controller=made.controller)
        assert (site.outcome(message), codes) == (wanted, [CRASHED])
    assert len(file.read_bytes().splitlines()) == executions
    assert site.reported("obsState")[-1] == obs_state


def test_an_observation_in_memory(tmp_path: Any) -> None:
    """From OFF to a scan and back, as TM would; each execution is a line of the report."""
    site, file = Site(), tmp_path / "report.jsonl"
    site.say(State="OFF")
    life = Life(site, controller=simulated(report=file, clock=site.clock).controller)
    names = "On AssignResources Configure Scan EndScan End ReleaseAllResources Off".split()
    sent = []
    for name in names:
        sent.append(site.send(name, argument=ARGUMENTS.get(name)))
        life.work()
    assert [site.outcome(message) for message in sent] == ["COMPLETED"] * len(names)
    assert site.reported("obsState") == [
        "EMPTY", "RESOURCING", "IDLE", "CONFIGURING", "READY", "SCANNING", "READY", "IDLE", "RESOURCING", "EMPTY",
        "EMPTY",
    ]  # fmt: skip
    lines = [msgspec.json.decode(line, type=ExecutionLine) for line in file.read_bytes().splitlines()]
    assert [(line.id, line.command) for line in lines] == [(message.id, message.command) for message in sent]
    for record in site.broker.read("state"):
        assert len(msgspec.json.decode(record.value)["value"]) < 10_000


def test_processing_blocks_go_with_the_observation() -> None:
    """Real-time ones run with the resources, batch ones after End; one fails on request, once, and the command does
    not."""
    site = Site()
    site.say(State="OFF")
    life = Life(site, controller=simulated(faults=[ControllerFault("fail-block", "Scan")], clock=site.clock).controller)
    script = {"name": "vis-receive", "version": "1"}
    blocks = [
        {"pb_id": f"pb-{number}-{kind}", "script": {**script, "kind": kind}}
        for kind in ("realtime", "batch")
        for number in (1, 2)
    ]
    arguments = {**ARGUMENTS, "AssignResources": {**ARGUMENTS["AssignResources"], "processing_blocks": blocks}}
    told: list[list[tuple[str, str]]] = []

    def found() -> Counter[tuple[str, str]]:
        records = [msgspec.json.decode(one.value) for one in site.broker.read(BLOCKS)]
        assert len({(one["pb_id"], one["sequence"]) for one in records}) == len(records)
        return Counter((one["pb_id"], one["state"]) for one in records)

    for name in "On AssignResources Configure Scan EndScan End ReleaseAllResources AssignResources Off".split():
        site.clock.sleep(1.0)
        before = found()
        sent = site.send(name, argument=arguments.get(name))
        life.work()
        assert site.outcome(sent) == "COMPLETED"
        told.append(sorted((found() - before).elements()))
    assigned = sorted(
        [("pb-1-batch", "WAITING"), ("pb-2-batch", "WAITING")]
        + [(f"pb-{number}-realtime", state) for number in (1, 2) for state in ("STARTING", "RUNNING")]
    )
    assert told == [
        [],
        assigned,
        [],
        [("pb-1-realtime", "FAILED")],
        [],
        [("pb-1-batch", "RUNNING"), ("pb-2-batch", "RUNNING")],
        [("pb-1-batch", "FINISHED"), ("pb-2-batch", "FINISHED"), ("pb-2-realtime", "FINISHED")],
        assigned,
        [(f"pb-{number}-{kind}", "FINISHED") for number in (1, 2) for kind in ("batch", "realtime")],
    ]


def test_receptors_are_reserved_for_as_long_as_the_subarray_has_them() -> None:
    """With the names that it has then; other resources are not reserved, nor names that no record takes."""
    site = Site()
    site.say(State="OFF")
    life = Life(site, controller=simulated(clock=site.clock).controller)
    give = {"resources": {"receptors": ["SKA001", "SKA002", "x" * 101], "csp_links": [1, 2], "receive_nodes": 3}}
    seen: list[tuple[str, list[str]]] = []
    for name, argument in (
        ("On", None),
        ("AssignResources", {**give, "execution_block": BLOCK}),
        ("Configure", ARGUMENTS["Configure"]),
        ("End", None),
        ("ReleaseResources", ARGUMENTS["ReleaseResources"]),
        ("ReleaseAllResources", None),
        ("AssignResources", ARGUMENTS["AssignResources"]),
        ("Off", None),
        ("On", None),
        ("Off", None),
    ):
        site.clock.sleep(1.0)
        sent = site.send(name, argument=argument)
        life.work()
        assert site.outcome(sent) == "COMPLETED", name
    for record in site.broker.read(RESERVATIONS):
        one = read_reservation(record)
        assert (one.id, one.subarray, one.expires > one.time) == ("subarray-01/receptors", 1, True)
        seen.append((one.state, one.names))
    assert seen == [
        ("GRANTED", ["SKA001", "SKA002"]),
        ("GRANTED", ["SKA002"]),
        ("RELEASED", ["SKA002"]),
        ("GRANTED", ["SKA002"]),
        ("RELEASED", ["SKA002"]),
    ]


@pytest.mark.needs("facade.simulate")
def test_a_range_of_receptors_that_is_empty_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from facade.sdk.controller.simulator import cli

    for name in ("run", "end_process"):
        monkeypatch.setattr(cli, name, lambda *_, **__: None)
    with pytest.raises(ConfigError, match=r"lower number first, got SKA133\.\.SKA002"):
        cli.controller(receptors=["SKA001", "SKA133..SKA002"])


def test_receptors_that_are_not_there_or_that_another_subarray_has_are_refused() -> None:
    """Also while the other one is only about to get them; and they can be had when they were given back."""
    site = Site()
    for device in DEVICES:
        site.say(device, State="ON", obsState="EMPTY")
    there = ["SKA001", "SKA002", "SKA003"]
    life = Life(site, controller=simulated(clock=site.clock, receptors=there).controller)

    def send(device: str, *names: str) -> CommandMessage:
        argument = {"resources": {"receptors": list(names)}, "execution_block": BLOCK}
        return site.send("AssignResources", device, argument=argument, repeatable=False)

    def outcome(message: CommandMessage) -> tuple[str, str]:
        life.work()
        return site.outcome(message), site.outcomes(message)[0].text

    assert outcome(send(FIRST, "SKA001", "SKA004")) == (
        "REJECTED",
        "$.resources.receptors: expected receptors that are there, got SKA004",
    )
    first, second = send(FIRST, "SKA001", "SKA002"), send(SECOND, "SKA002", "SKA003")
    entered = False

    def meanwhile(_: Any) -> None:  # the other subarray's thread
        nonlocal entered
        if not entered:
            entered = True
            life.loop.execute_next(SECOND)

    life.meanwhile = meanwhile
    assert outcome(first) == ("COMPLETED", "")
    assert entered
    refused = f"$.resources.receptors: expected receptors that no other subarray has, got SKA002 of {FIRST}"
    assert outcome(second) == ("REJECTED", refused)
    assert outcome(send(SECOND, "SKA002")) == ("REJECTED", refused)
    assert outcome(send(SECOND, "SKA003")) == ("COMPLETED", "")
    assert outcome(site.send("ReleaseAllResources", FIRST)) == ("COMPLETED", "")
    assert outcome(send(SECOND, "SKA001", "SKA002")) == ("COMPLETED", "")


def test_the_attributes_that_say_where_fields_are_hold_as_long_as_the_resources() -> None:
    """Each once, and of a block without any, none."""
    names = ["low-tmc/telstate/0/pointing", "low-tmc/telstate/1/pointing"]
    fields = [{"field_id": str(index), "pointing_fqdn": name} for index, name in enumerate([*names, names[0]])]
    block = {"eb_id": "eb-test-20270115-00001", "beams": [], "scan_types": [], "fields": [*fields, {"field_id": "x"}]}
    changes = COMMANDS["AssignResources"](Subarray(), {"resources": {}, "execution_block": block})
    assert changes["pointingAttributes"] == names
    assert "pointingAttributes" not in COMMANDS["AssignResources"](Subarray(), {"resources": {"receptors": ["C1"]}})
    assert COMMANDS["ReleaseAllResources"](Subarray(), {})["pointingAttributes"] == []
    del block["fields"]
    assert COMMANDS["AssignResources"](Subarray(), {"execution_block": block})["pointingAttributes"] == []

"""The commands of the shipped interface are those of SKA's SDP, on devices where TM looks for them."""

import json
from collections.abc import Mapping

import jsonschema
import msgspec
import pytest

from facade.flows.commands.messages import AckMessage, CommandMessage, HeartbeatMessage, ReportedState
from facade.kernel.config import Settings, load_settings
from facade.kernel.errors import ConfigError
from facade.kernel.icd.load import load
from facade.kernel.icd.model import CommandDefinition
from facade.kernel.instances import registration
from facade.sdp.device_state import StateMessage
from facade.sdp.messages import DeviceComplaint

ICD = load()
SUBARRAY, MASTER = ICD.classes["SdpSubarray"], ICD.classes["SdpMaster"]
COMMANDS: Mapping[str, CommandDefinition] = {one.name: one for one in SUBARRAY.commands}
OBS_STATES = ICD.enums["ObsState"]

# command, State, obsStates in which it is allowed, what is shown meanwhile, where it leads
TABLE = [
    ("On", "OFF", "EMPTY FAULT", None, "ON"),
    ("Off", "ON", "", None, "OFF"),
    ("AssignResources", "ON", "EMPTY IDLE", "RESOURCING", "IDLE"),
    ("ReleaseResources", "ON", "IDLE", "RESOURCING", "IDLE"),
    ("ReleaseAllResources", "ON", "IDLE", "RESOURCING", "EMPTY"),
    ("Configure", "ON", "IDLE READY", "CONFIGURING", "READY"),
    ("Scan", "ON", "READY", None, "SCANNING"),
    ("EndScan", "ON", "SCANNING", None, "READY"),
    ("End", "ON", "READY", None, "IDLE"),
    ("Abort", "ON", "RESOURCING IDLE CONFIGURING READY SCANNING RESETTING", "ABORTING", "ABORTED"),
    ("ObsReset", "ON", "ABORTED FAULT", "RESETTING", "IDLE"),
    ("Restart", "ON", "ABORTED FAULT", "RESTARTING", "EMPTY"),
]


@pytest.mark.parametrize(("name", "state", "obs_states", "transitional", "target"), TABLE)
def test_a_command_is_allowed_where_ska_allows_it(
    name: str, state: str, obs_states: str, transitional: str | None, target: str
) -> None:
    command = COMMANDS[name]
    assert command.state == (state,)
    assert set(command.obs_state) == set(obs_states.split())
    assert command.transitional == transitional
    assert command.targets[0] == target
    assert command.reports == ("State" if name in ("On", "Off") else "obsState")


def test_the_subarray_has_these_commands_and_no_others() -> None:
    assert [one.name for one in SUBARRAY.commands] == [row[0] for row in TABLE]


def test_a_command_that_does_harm_when_it_is_done_twice_is_not_repeatable() -> None:
    assert {name for name, one in COMMANDS.items() if not one.repeatable} == {"AssignResources", "Configure", "Scan"}


def test_what_stops_everything_need_not_wait() -> None:
    assert {name for name, one in COMMANDS.items() if one.overtakes} == {"Abort", "Off"}


def test_the_commanded_state_is_a_stable_one() -> None:
    stable = {"EMPTY", "IDLE", "READY", "ABORTED"}
    assert {one.commanded or one.targets[0] for one in SUBARRAY.commands} == stable


def test_every_obs_state_can_be_reached_and_left() -> None:
    shown = {label for one in SUBARRAY.commands for label in (*one.targets, one.transitional)}
    assert set(OBS_STATES) - shown == {"FAULT"}
    for label in OBS_STATES:
        assert any("ON" in one.state and (not one.obs_state or label in one.obs_state) for one in SUBARRAY.commands)


def test_the_enumerations_have_skas_values() -> None:
    numbers = {"EMPTY": 0, "IDLE": 2, "READY": 4, "SCANNING": 5, "ABORTED": 7, "FAULT": 9, "RESTARTING": 10}
    assert {label: OBS_STATES.index(label) for label in numbers} == numbers
    assert ICD.enums["HealthState"] == ("OK", "DEGRADED", "FAILED", "UNKNOWN")


@pytest.mark.parametrize("name", ["On", "Off", "Standby", "Disable"])
def test_sdp_as_a_whole_goes_from_any_state_to_any_other(name: str) -> None:
    command = next(one for one in MASTER.commands if one.name == name)
    target = name.upper()
    assert command.targets == (target,)
    assert set(command.state) == {"ON", "OFF", "STANDBY", "DISABLE", "ALARM", "UNKNOWN"} - {target}
    assert command.reports == "State"


def test_both_devices_show_commands_in_the_same_way() -> None:
    assert SUBARRAY.queries == MASTER.queries
    names = {one.name for one in SUBARRAY.attributes if one.name.startswith(("longRunning", "lrc"))}
    assert len(names) == 10
    for owner in (SUBARRAY, MASTER):
        shown = [one for one in owner.attributes if one.name in names]
        assert len(shown) == len(names)
        assert all((one.sampling or owner.sampling).shortest == 0 for one in shown)
        assert not any(owner.stale_after if one.stale_after is None else one.stale_after for one in shown)


MESSAGES = {
    "command": CommandMessage(
        id="1795255000_17_Scan",
        device="mid-sdp/subarray/01",
        command="Scan",
        argument={"scan_id": 1},
        transaction_id="txn-test-20261121-00042",
        issued=1,
        not_after=2,
        deadline=3,
        ceiling=4,
        repeatable=False,
        origin="SdpFacade-subarray",
        client="10.0.0.7, process 4242",
        operator="ann",
        approver="ben",
        approver_client="10.0.0.8, process 17",
        parent="1795255000_16_On",
    ),
    "command-ack": AckMessage(
        id="1795255000_17_Scan",
        device="mid-sdp/subarray/01",
        command="Scan",
        status="IN_PROGRESS",
        time=1,
        origin="controller",
        remaining=1.5,
        progress=50,
        text="half of it",
        result=[0, "fine"],
        withdrawer="ann",
        withdrawer_client="10.0.0.7, process 4242",
        states={"obsState": ReportedState("READY", 1)},
    ),
    "heartbeat": HeartbeatMessage(
        component="controller",
        incarnation="a",
        devices=("mid-sdp/subarray/01",),
        time=1,
        interval=1.0,
        group="controllers",
        role="server",
        stopping=True,
        version="1.0",
        complaints=[DeviceComplaint(device="mid-sdp/subarray/01", text="health is FAILED")],
    ),
    "state": StateMessage(
        device="mid-sdp/subarray/01",
        attribute="obsState",
        value="IDLE",
        time=1,
        origin="controller",
        command="1795255000_17_Scan",
        client="10.0.0.7, process 4242",
        operator="ann",
    ),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_is_what_its_schema_says(name: str) -> None:
    schema, message = ICD.messages[name], json.loads(msgspec.json.encode(MESSAGES[name]))
    jsonschema.validate(message, schema)
    assert list(message) == list(schema["properties"])


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_without_its_optional_fields_is_legal_too(name: str) -> None:
    schema, message = ICD.messages[name], MESSAGES[name]
    fields = msgspec.structs.fields(message)
    assert schema["required"] == ["schema", *(field.encode_name for field in fields if field.required)]
    needed = {field.name: getattr(message, field.name) for field in fields if field.required}
    jsonschema.validate(json.loads(msgspec.json.encode(type(message)(**needed))), schema)


def test_a_command_without_an_argument_says_null() -> None:
    message = msgspec.structs.replace(MESSAGES["command"], argument=None)
    jsonschema.validate(json.loads(msgspec.json.encode(message)), ICD.messages["command"])


@pytest.mark.parametrize("count", [1, 2, 16])
def test_the_subarrays_are_registered_by_number_from_one(count: int) -> None:
    server = registration(ICD, Settings(subarrays=count))["servers"]["SdpFacade"]["subarray"]
    assert list(server["SdpSubarray"]) == [f"mid-sdp/subarray/{number:02d}" for number in range(1, count + 1)]


@pytest.mark.parametrize("count", ["0", "17", "-1"])
def test_there_are_sixteen_subarrays_at_most(count: str) -> None:
    with pytest.raises(ConfigError, match=rf"subarrays: expected 1 to 16, got {count}"):
        load_settings({"SDP_SUBARRAYS": count})
    assert load_settings({"SDP_SUBARRAYS": "16"}).subarrays == 16
    assert load_settings({}).subarrays == 2

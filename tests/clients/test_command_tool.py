"""`sdp-facade command`: refused with the schema's words before anything is sent, and told to its outcome."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tango
from typer.testing import CliRunner

from facade.kernel.cli.app import app
from facade.kernel.clock import ManualClock
from facade.kernel.errors import CommandRefused, FacadeError
from sdp_facade_clients import ask, command

CONFIGURE = {"interface": "https://schema.skao.int/ska-sdp-configure/0.4", "scan_type": "science_A"}


class Device(ask.AskedDevice):
    """A device of which each look at a command finds the next status."""

    said: list[tuple[Any, ...]]
    statuses: list[tuple[str, str | None]]

    def __init__(self, tango_host: str, name: str, server: str) -> None:
        self.said.append(("device", name))

    def write(self, attribute: str, value: Any) -> None:
        self.said.append((attribute, value))

    def command(self, name: str, argument: Any = None) -> Any:
        self.said.append((name, argument))
        if name != "GetCommand":
            return [2], ["1_1_it"]
        status, finished = self.statuses.pop(0)
        return json.dumps({"status": status, "finished_time": finished, "progress": 40, "text": "said\x1b[2J"})


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    monkeypatch.setattr(Device, "said", [], raising=False)
    monkeypatch.setattr(ask, "AskedDevice", Device)
    monkeypatch.setattr(command, "require_tango_database", lambda tango_host: None)
    monkeypatch.setattr(command, "SystemClock", ManualClock)
    return Device.said


def call(*words: str, text: str | bytes | None = None) -> Any:
    return CliRunner().invoke(app, ["command", *words, "--tango-host", "here:1"], input=text)


@pytest.mark.parametrize(("status", "code"), [("COMPLETED", 0), ("FAILED", 1), ("TIMED_OUT", 1)])
def test_a_command_is_told_to_its_outcome(
    said: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, status: str, code: int
) -> None:
    file = tmp_path / "scan.json"
    file.write_text(json.dumps(CONFIGURE))
    found = [("ACCEPTED", None), *[("IN_PROGRESS", None)] * 30, (status, "2027-01-15T08:00:00Z")]
    monkeypatch.setattr(Device, "statuses", found, raising=False)
    done = call("1", "Configure", str(file))
    assert done.exit_code == code, done.output
    assert said[:2] == [("device", "mid-sdp/subarray/01"), ("Configure", file.read_text())]
    lines = done.stdout.splitlines()
    assert (lines[0], lines[-1].split()[0]) == ("1_1_it", status)
    assert "IN_PROGRESS 40 %" in done.stderr
    assert "\x1b[2J" not in done.output


def test_nobody_waits_without_being_asked_to(said: list[tuple[Any, ...]]) -> None:
    done = call("mid-sdp/subarray/02", "Abort", "--no-wait")
    assert (done.exit_code, done.stdout) == (0, "1_1_it\n")
    assert said == [("device", "mid-sdp/subarray/02"), ("Abort", None)]


def test_a_command_is_given_in_the_name_of_an_operator(said: list[tuple[Any, ...]]) -> None:
    assert call("1", "Abort", "--operator", "Åsa", "--no-wait").stdout == "1_1_it\n"
    (_, (name, request)) = said
    assert (name, json.loads(request)) == ("GiveCommand", {"command": "Abort", "operator": "Åsa"})


@pytest.mark.parametrize(("word", "outcome"), [("ApproveCommand", "COMPLETED"), ("WithdrawCommand", "ABORTED")])
def test_a_command_that_waits_is_approved_or_withdrawn_by_its_id(
    said: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch, word: str, outcome: str
) -> None:
    assert call("1", word, "1_1_it", "--operator", "ben", "--no-wait").stdout == "1_1_it\n"
    (_, (name, request)) = said
    assert (name, json.loads(request)) == (word, {"id": "1_1_it", "operator": "ben"})
    assert call("1", word, "1_1_it").exit_code == 1, "a name is needed"
    for status in ("COMPLETED", "ABORTED", "UNDELIVERED"):
        monkeypatch.setattr(Device, "statuses", [(status, "2027-01-15T08:00:00Z")], raising=False)
        assert call("1", word, "1_1_it", "--operator", "ben").exit_code == (status != outcome)


def test_a_mode_is_set_by_its_label(said: list[tuple[Any, ...]]) -> None:
    assert call("control/0", "adminMode", "OFFLINE").exit_code == 0
    assert said == [("device", "mid-sdp/control/0"), ("adminMode", 1)]
    assert call("control/0", "adminMode", "OFFLINE", "--operator", "ann").exit_code == 0
    name, request = said[-1]
    assert (name, json.loads(request)) == ("SetAdminMode", {"mode": "OFFLINE", "operator": "ann"})


@pytest.mark.parametrize(
    ("words", "text", "why"),
    [
        (("ingest/0001", "On"), "", "DEVICE: expected the number of a subarray, or a device that takes commands"),
        (
            ("tango://db:1/mid-sdp/subarray/01", "Abort"),
            "",
            "device: expected mid-sdp/subarray/01, and its database by TANGO_HOST or --tango-host=db:1, got 'tango://",
        ),
        (("1", "Abrot"), "", "NAME: expected one of On, Off, AssignResources, "),
        (("1", "Abort", "x.json"), "", "ARGUMENT: expected none, as Abort takes none, got 'x.json'"),
        (("1", "Configure"), "", "ARGUMENT: expected a file with the JSON argument of Configure, or -, got nothing"),
        (("1", "Configure", "-"), '{"scan_type": 1}', "standard input: $.scan_type: expected text, got 1; nothing was"),
        (("1", "Configure", "-"), "", "standard input: $: expected a JSON object, got an empty text; nothing was sent"),
        (("1", "Configure", "-"), b"\xff", "standard input: 'utf-8' codec can't decode byte 0xff"),
        (("1", "adminMode", "OFFLIN"), "", "ARGUMENT: expected one of ONLINE, OFFLINE, "),
    ],
)
def test_a_wrong_call_sends_nothing_and_says_why(
    said: list[tuple[Any, ...]], words: tuple[str, ...], text: str | bytes, why: str
) -> None:
    done = call(*words, text=text)
    assert isinstance(done.exception, FacadeError)
    assert why in str(done.exception)
    assert said == []


def test_a_refusal_of_the_device_is_its_own_text(said: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Device, name: str, argument: Any = None) -> Any:
        raise CommandRefused("API_CommandNotAllowed", "Scan not allowed when obsState is EMPTY", "x")

    monkeypatch.setattr(Device, "command", refuse)
    assert "Scan not allowed when obsState is EMPTY" in str(call("1", "Abort").exception)


@pytest.mark.parametrize(
    ("reason", "text", "told"),
    [
        (
            "API_DeviceLocked",  # as Tango 10.3 says it
            "Device mid-sdp/subarray/01 is locked by another client",
            "is locked by another client; that client has to unlock it",
        ),
        ("API_AttrNotAllowed", "from ONLINE the model does not lead to RESERVED", "does not lead to RESERVED"),
    ],
)
def test_the_operator_of_a_device_that_refuses_is_not_told_to_start_its_server(
    monkeypatch: pytest.MonkeyPatch, reason: str, text: str, told: str
) -> None:
    errors = [
        (reason, text),
        ("API_CommandFailed", "Failed to execute command_inout on device mid-sdp/subarray/01, command Abort"),
    ]

    def locked(name: str, argument: Any) -> None:
        failed = [tango.DevError() for _ in errors]
        for error, (reason, text) in zip(failed, errors, strict=True):
            error.reason, error.desc = reason, text
        raise tango.DevFailed(*failed)

    monkeypatch.setattr(tango, "DeviceProxy", lambda name: SimpleNamespace(command_inout=locked))
    with pytest.raises(CommandRefused, match=told) as refused:
        ask.AskedDevice("here:1", "mid-sdp/subarray/01", "subarray").command("Abort")
    assert "start" not in str(refused.value)

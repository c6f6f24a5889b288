"""TM in the fault run: it always finds a command to give, or the run would stand still."""

import pytest

from facade.clock import ManualClock
from facade.icd.load import load
from proving.fault_runs.caller import CHOICES, Caller

ICD = load()
COMMANDS = {command.name: command for command in ICD.classes["SdpSubarray"].commands}


def test_there_is_a_way_out_of_every_state():
    assert set(CHOICES) == {"OFF", *ICD.enums["ObsState"]}
    for shown, choices in CHOICES.items():
        state, obs_state = ("OFF", "EMPTY") if shown == "OFF" else ("ON", shown)
        for name in choices:
            assert state in COMMANDS[name].state
            assert not COMMANDS[name].obs_state or obs_state in COMMANDS[name].obs_state


@pytest.mark.parametrize(
    ("shown", "patience"),
    [("READY", 0.0), ("ABORTED", 0.0), ("CONFIGURING", 2.0), ("ABORTING", 20.0), ("RESTARTING", 20.0)],
)
def test_what_does_not_end_is_waited_for_but_not_for_ever(monkeypatch, shown, patience):
    clock = ManualClock()
    caller = Caller("host:1", "mid-sdp/subarray/01", 0, 1, clock)
    begin = clock.monotonic()
    monkeypatch.setattr(caller, "_look", lambda: "" if clock.monotonic() - begin < 0.5 else shown)
    assert caller._settled() == shown
    assert clock.monotonic() - begin == pytest.approx(max(patience, 0.5), abs=0.1)

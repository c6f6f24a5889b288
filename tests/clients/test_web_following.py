"""Subscriptions of the operator's page, beside a Tango database that comes and goes."""

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
import tango

from facade.kernel.clock import ManualClock
from facade.kernel.icd.load import load
from sdp_facade_clients.web import following
from sdp_facade_clients.web.following import Following

NODE = "mid-sdp/ingest/0001"
SERVERS = {
    "SdpFacade/control": {"mid-sdp/control/0": "SdpMaster", "mid-sdp/bus/0": "SdpBus"},
    "SdpFacade/ingest-0": {NODE: "SdpIngestNode"},
}


def nothing(*_: object) -> None:
    pass


def test_what_a_database_interrupts_is_done_at_the_next_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices whose turn came while it was away were never followed, and no server was seen to be silent."""
    clock, calls, subscribed = ManualClock(1000.0), list[str](), dict[str, set[str]]()

    def away(what: str) -> None:
        """Fail at the first call for each thing."""
        calls.append(what)
        if calls.count(what) == 1:
            tango.Except.throw_exception("API_DatabaseAccess", "it does not answer", "test")

    class Pulse:
        def __init__(self, tango_host: str, servers: Mapping[str, Any], clock: Any) -> None:
            away("pulse")

        def silent(self) -> Mapping[str, float]:
            return {"mid-sdp/bus/0": 990.0}

    def subscribe(device: str, attributes: Iterable[str]) -> None:
        if device not in subscribed:
            away(device)
        subscribed.setdefault(device, set()).update(attributes)

    class Recorder:
        def __init__(self, *_: Any, **__: Any) -> None:
            self.subscribe = subscribe

        @property
        def devices(self) -> tuple[str, ...]:
            return tuple(subscribed)

        def step(self, silent: Any) -> None:
            pass

    monkeypatch.setattr(following, "find_servers", lambda *_: SERVERS)
    monkeypatch.setattr(following, "EventPulse", Pulse)
    monkeypatch.setattr(following, "EventRecorder", Recorder)
    page = Following("host:10000", "SdpFacade", load(), clock, on_change=nothing, on_forget=nothing)
    with pytest.raises(tango.DevFailed):
        page.step()  # its thread logs it, and goes on
    for _ in range(5):
        clock.sleep(following._LOOK_AGAIN)
        page.step()
    assert {device: "State" in names for device, names in subscribed.items()} == dict.fromkeys(page.devices, True)
    assert [*page.silent()] == ["mid-sdp/bus/0"]


def test_a_node_that_is_opened_before_its_turn_has_its_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the database ended a look before the node's turn, only its State was never followed."""
    clock, subscribed, is_away = ManualClock(1000.0), dict[str, set[str]](), [True]

    class Recorder:
        def __init__(self, *_: Any, **__: Any) -> None:
            self.step = nothing

        @property
        def devices(self) -> tuple[str, ...]:
            return tuple(subscribed)

        def subscribe(self, device: str, attributes: Iterable[str]) -> None:
            if is_away[0]:
                tango.Except.throw_exception("API_DatabaseAccess", "it does not answer", "test")
            subscribed.setdefault(device, set()).update(attributes)

    class Pulse:
        def __init__(self, *_: Any) -> None:
            self.silent = dict

    monkeypatch.setattr(following, "find_servers", lambda *_: SERVERS)
    monkeypatch.setattr(following, "EventPulse", Pulse)
    monkeypatch.setattr(following, "EventRecorder", Recorder)
    page = Following("host:10000", "SdpFacade", load(), clock, on_change=nothing, on_forget=nothing)
    page.step()
    is_away[0] = False
    page.ask(NODE)
    page.step()
    for _ in range(3):
        clock.sleep(following._LOOK_AGAIN)
        page.step()
    assert {device: "State" in names for device, names in subscribed.items()} == dict.fromkeys(page.devices, True)

"""Subscriptions of the operator's page, beside a Tango database that comes and goes."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
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


class Database:
    """What the page asks, as long as the Tango database answers; `fails`: whether it does not, for a thing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fails: Callable[[str], bool]) -> None:
        self.subscribed = subscribed = dict[str, set[str]]()

        def ask(what: str) -> None:
            if fails(what):
                tango.Except.throw_exception("API_DatabaseAccess", "it does not answer", "test")

        class Pulse:
            def __init__(self, *_: Any) -> None:
                ask("pulse")

            def silent(self) -> Mapping[str, float]:
                return {"mid-sdp/bus/0": 990.0}

        class Recorder:
            def __init__(self, *_: Any, **__: Any) -> None:
                self.step = nothing

            @property
            def devices(self) -> tuple[str, ...]:
                return tuple(subscribed)

            def subscribe(self, device: str, attributes: Iterable[str]) -> None:
                if device not in subscribed:
                    ask(device)
                subscribed.setdefault(device, set()).update(attributes)

        monkeypatch.setattr(following, "find_servers", lambda *_: SERVERS)
        monkeypatch.setattr(following, "EventPulse", Pulse)
        monkeypatch.setattr(following, "EventRecorder", Recorder)
        self.clock = ManualClock(1000.0)
        self.page = Following("host:10000", "SdpFacade", load(), self.clock, on_change=nothing, on_forget=nothing)

    def look_again(self, times: int) -> None:
        for _ in range(times):
            self.clock.sleep(following._LOOK_AGAIN)
            self.page.step()

    def require_states(self) -> None:
        """Require that State of every device is followed."""
        found = {device: "State" in names for device, names in self.subscribed.items()}
        assert found == dict.fromkeys(self.page.devices, True)


def test_what_a_database_interrupts_is_done_at_the_next_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices whose turn came while it was away were never followed, and no server was seen to be silent."""
    calls = Counter[str]()

    def fails_first(what: str) -> bool:
        calls[what] += 1
        return calls[what] == 1

    database = Database(monkeypatch, fails_first)
    with pytest.raises(tango.DevFailed):
        database.page.step()  # its thread logs it, and continues
    database.look_again(5)
    database.require_states()
    assert [*database.page.silent()] == ["mid-sdp/bus/0"]


def test_a_node_that_is_opened_before_its_turn_has_its_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the database ended a look before the node's turn, only its State was never followed."""
    is_away = [True]
    database = Database(monkeypatch, lambda what: is_away[0] and what != "pulse")
    database.page.step()
    is_away[0] = False
    database.page.ask(NODE)
    database.page.step()
    database.look_again(3)
    database.require_states()

"""When a standby of a device server has its turn, and when the one that served ends."""

from facade.messages import Heartbeat
from facade.runtime.standby import SUFFIX, Replacement, Succession

SERVER = "SdpFacade-subarray"


def sign(incarnation: str, component: str = SERVER, *, stopping: bool = False, interval: float = 0.5) -> Heartbeat:
    return Heartbeat(
        component=component,
        incarnation=incarnation,
        devices=[],
        time=1,
        interval=interval,
        role="server",
        stopping=stopping,
        version="1",
        complaints=[],
    )


def no() -> bool:
    return False


class Log:
    """Gives signs of life to one standby, `b`."""

    def __init__(self) -> None:
        self.succession = Succession(SERVER, "b")

    def server(self, at: float, incarnation: str = "a", *, stopping: bool = False) -> None:
        self.succession.fold(sign(incarnation, stopping=stopping), round(at * 1e6))

    def standby(self, at: float, incarnation: str = "b", *, stopping: bool = False) -> None:
        self.succession.fold(sign(incarnation, SERVER + SUFFIX, stopping=stopping), round(at * 1e6))


def test_a_server_that_says_goodbye_is_followed_at_once() -> None:
    log = Log()
    log.standby(100.0)
    log.server(100.1)
    assert not log.succession.is_due(no)
    log.server(100.2, stopping=True)
    assert log.succession.is_due(no)


def test_a_server_that_missed_three_signs_of_life_is_asked_and_followed_if_it_does_not_answer() -> None:
    log = Log()
    log.standby(100.0)
    log.server(100.0)
    log.standby(101.5)
    assert not log.succession.is_due(no)
    log.standby(101.75)
    assert not log.succession.is_due(lambda: True), "a busy machine"
    assert log.succession.is_due(no)
    log.standby(103.75)
    assert log.succession.is_due(lambda: True), "its event loop hangs, or it has lost the bus"


def test_while_the_bus_is_away_nobody_is_silent() -> None:
    log = Log()
    log.server(100.0)
    assert not log.succession.is_due(no), "its own signs of life do not come back"
    log.standby(100.1)
    log.server(160.0)
    log.standby(160.1)
    assert not log.succession.is_due(no)


def test_a_server_that_nobody_has_heard_of_is_waited_for() -> None:
    log = Log()
    log.standby(100.0)
    log.standby(103.0)
    assert not log.succession.is_due(no)
    log.standby(103.75)
    assert log.succession.is_due(no)


def test_of_several_standbys_the_first_one_that_lives_follows() -> None:
    log = Log()
    log.standby(100.0, "a2")
    log.standby(100.0)
    log.server(100.0, stopping=True)
    assert not log.succession.is_due(no)
    log.standby(100.2, "a2", stopping=True)
    assert log.succession.is_due(no)
    log.standby(100.3, "a3")
    assert not log.succession.is_due(no)
    log.standby(104.0)
    assert log.succession.is_due(no), "a3 is silent"


def test_a_server_ends_when_a_later_one_has_its_name_and_not_for_an_earlier_one() -> None:
    ended_for: list[str] = []
    replacement = Replacement(SERVER, "b", ended_for.append)
    for heartbeat in (sign("a"), sign("b"), sign("a"), sign("b"), sign("x", "SdpFacade-control"), sign("b")):
        replacement.fold(heartbeat, 1)
    assert ended_for == []
    replacement.fold(sign("c"), 1)
    assert ended_for == ["c"]

"""The alarms of a demo's scenario at its end: none is left that nobody has acknowledged."""

from types import SimpleNamespace
from typing import Any

from rich.console import Console

from facade.kernel.clock import ManualClock
from sdp_facade_lab.demo.flows import AlertChapter
from sdp_facade_lab.progress import ProgressLine


def test_an_alarm_that_is_shown_as_shelved_for_a_moment_longer_is_acknowledged() -> None:
    """Beside other work, the status of a demo that stays was ATTENTION for good."""
    clock, acted = ManualClock(), list[tuple[str, float]]()
    alarm = {"condition": "coolantWarm", "source": "cooling/2", "occurrence": 7}

    def alarms(device: str) -> list[dict[str, Any]]:
        times = dict(acted)
        if "Acknowledge" in times:
            return []
        is_shown = "Unshelve" in times and clock.now() > times["Unshelve"] + 3.0
        return [{**alarm, "state": "RTNUN" if is_shown else "SHLVD"}]

    def act(command: str, argument: str) -> None:
        acted.append((command, clock.now()))

    chapter = AlertChapter.__new__(AlertChapter)
    chapter._name, chapter._progress = "mid-sdp/alerts/0", ProgressLine(Console(quiet=True), clock)
    source = SimpleNamespace(clear=lambda *_: None)
    chapter._sources, chapter._sent = dict.fromkeys(("cooling/2", "buffer/0"), source), {"cooling/2": 0, "buffer/0": 0}
    chapter._actions = set()
    deployment = SimpleNamespace(alarms=alarms, proxy=lambda _: SimpleNamespace(command_inout=act))
    chapter._demo = SimpleNamespace(deployment=deployment)

    chapter.tidy_up()

    assert [command for command, _ in acted] == ["Unshelve", "Acknowledge"]

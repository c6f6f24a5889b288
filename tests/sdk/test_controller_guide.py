"""The controller of the guide is a whole one: it is short, and it works."""

import re
from pathlib import Path
from typing import Any

import pytest

from facade.sdk.controller.api import Controller
from tests.support.controllers import FIRST, Life, Site

GUIDE = Path(__file__).parents[2] / "docs" / "how-to" / "write-a-controller.md"
CODE = re.search(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)[1]


@pytest.fixture
def controller(monkeypatch: pytest.MonkeyPatch) -> Controller:
    made: list[Controller] = []
    monkeypatch.setattr("facade.sdk.controller.process.run", made.append)
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(CODE, str(GUIDE), "exec"), names)
    return made[0]


def test_it_is_short() -> None:
    """Twenty lines, not counting empty ones."""
    assert len([line for line in CODE.splitlines() if line.strip()]) <= 20


def test_it_works(controller: Controller) -> None:
    """A known scan type is configured, with progress; an unknown one is refused."""
    site = Site()
    site.say(State="ON", obsState="IDLE", scanTypes='["target:a"]')
    good = site.send("Configure", FIRST, argument={"scan_type": "target:a"})
    bad = site.send("Configure", FIRST, argument={"scan_type": "none"})
    Life(site, controller=controller).work()
    assert site.statuses(good) == ["ACCEPTED", "IN_PROGRESS", "IN_PROGRESS", "IN_PROGRESS", "COMPLETED"]
    assert (site.outcome(bad), site.acks(bad)[-1].text) == ("REJECTED", "scan type none is unknown")
    assert site.reported("obsState") == ["IDLE", "CONFIGURING", "READY"]
    assert site.reported("scanType") == ["target:a"]


def test_the_table_of_the_guide_names_what_there_is() -> None:
    """Each attribute and method of a call that the guide shows exists."""
    from facade.sdk.controller.call import Call
    from facade.sdk.controller.execution_state import CommandOffset, Execution

    shown = set(re.findall(r"`call\.(\w+)", GUIDE.read_text()))
    life = Life(Site())
    message = life.site.command()
    loop = life.loop
    call = Call(Execution(message, (), CommandOffset(0, 0)), loop._outbox, loop._orders, loop._ownership)
    assert {"argument", "report", "wait", "progress"} <= shown
    assert not [name for name in shown if not hasattr(call, name)]

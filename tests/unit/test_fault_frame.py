"""The frame of the fault runs: each fault comes, parts are started again, and the account is made when all is done."""

from collections.abc import Callable, Mapping
from contextlib import contextmanager
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from facade.clock import ManualClock
from proving.bench.cli import MEASUREMENTS
from proving.fault_runs.frame import BROKER, FLOWS, SERVER, STANDSTILL, Balance, FaultRun, Size, process_name
from proving.progress import ProgressLine
from proving.roles import ROLES


class Played:
    """A deployment whose processes only have names."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.progress = ProgressLine(Console(quiet=True), self.clock)
        self.alive: dict[str, int] = {}
        self.said: list[str] = []
        self.broker = SimpleNamespace(
            kill=lambda: self.said.append("kill"), start=lambda: self.said.append("start"), frozen=self._frozen
        )
        self.processes = self

    def register(self) -> None:
        self.said.append("register")

    def start(self, name: str) -> None:
        self.alive[name] = self.alive.get(name, 0) + 1
        self.said.append(name)

    def kill(self, name: str) -> None:
        self.said.append(f"kill {name}")
        self._killed = name

    def __iter__(self) -> Any:
        killed, self._killed = getattr(self, "_killed", ""), ""
        return iter([SimpleNamespace(name=name, is_alive=name != killed) for name in self.alive])

    @contextmanager
    def _frozen(self) -> Any:
        self.said.append("freeze")
        yield
        self.said.append("thaw")


class Run(FaultRun):
    faults = (SERVER, BROKER, STANDSTILL)
    between = (1.0, 2.0)

    def parts(self) -> Mapping[str, Callable[[], Any]]:
        return {SERVER: lambda: self.deployment.start(process_name(SERVER))}

    def step(self) -> bool:
        return self.injected.total() < 7 and self.clock.now() < 1_800_000_060.0

    def in_words(self) -> str:
        return "well"

    def account(self) -> Balance:
        return Balance([("faults", self.injected.total())])


def test_each_fault_comes_before_one_comes_again_and_parts_run_again() -> None:
    played: Any = Played()
    run = Run(played, Size(1, 9), 3)
    assert run.run().rows == [("faults", 7)]
    assert sorted(run.injected.values()) == [2, 2, 3]
    kills = run.injected[SERVER]
    assert played.alive == {"device-server": 1 + kills}
    assert played.said[:2] == ["register", "device-server"]
    for before, after in (("kill", "start"), ("freeze", "thaw"), ("kill device-server", "device-server")):
        places = [at for at, said in enumerate(played.said) if said == before]
        assert all(played.said[at + 1] == after for at in places)


@pytest.mark.parametrize("table", [FLOWS, MEASUREMENTS, ROLES], ids=["flows", "measurements", "roles"])
def test_each_flow_measurement_and_role_is_where_its_table_says(table: Mapping[str, str]) -> None:
    for place in table.values():
        module, _, name = place.partition(":")
        assert callable(getattr(import_module(module), name)), place

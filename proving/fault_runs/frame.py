"""What all fault runs share: the schedule of faults, their injection, the report, and the frame of a sub-command."""

import random
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer
from rich.markup import escape
from rich.table import Table

from facade.clock import SystemClock
from facade.console import OUT
from facade.infra.processes import Process
from facade.runtime.stopping import terminable
from proving.deployment import Deployment
from proving.progress import Progress
from proving.testbed import testbed

BROKER, STANDSTILL = "broker", "standstills of the broker (SIGSTOP)"
SERVER = "device server"
READY_WITHIN = 60.0

_STANDS = (0.3, 2.5)
"""Shortest and longest time for which the broker stands still [s]."""
_LOOK = 0.02
_PROGRESS = 5.0
_MOST_SHOWN = 20

Seed = Annotated[int, typer.Option(help="Seed of the records and of the faults.")]
Folder = Annotated[Path, typer.Option(help="Folder for the broker, the Tango database and the logs of the run.")]


@dataclass(slots=True)
class Account:
    """The table, and what is wrong."""

    rows: list[tuple[str, int | str]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    more: Table | None = None
    """Shown before it, if there is more than a number to say."""


class FaultRun:
    """One run: starts all, injects faults until all is done, and asks everyone what became of it.

    Parameters
    ----------
    seed
        Of what is sent and of the faults; what happens in between is up to the machine.
    """

    faults: ClassVar[Sequence[str]]
    """What is injected: the name of a part that is killed, or `STANDSTILL`; each once, in random order, then again."""
    between: tuple[float, float]
    """Shortest and longest time between two faults [s]."""

    def __init__(self, deployment: Deployment, seed: int) -> None:
        self.deployment, self.progress, self.clock = deployment, deployment.progress, deployment.clock
        self.chance = random.Random(seed)  # noqa: S311 - a schedule that can be repeated
        self.injected = Counter(dict.fromkeys(self.faults, 0))
        self.left = sys.maxsize
        """How many faults are still to come."""
        self.broker_away = 0.0
        """Longest time from a kill of the broker until it took connections again [s]."""
        self._next: list[str] = []
        self._next_at = 0.0

    def parts(self) -> Mapping[str, Callable[[], Process]]:
        """Return how each part that must run is started."""
        raise NotImplementedError

    def begin(self) -> None:
        """Begin what is disturbed, when all parts have been started."""

    def step(self) -> bool:
        """Do what is due; return whether the run goes on."""
        raise NotImplementedError

    def in_words(self) -> str:
        """Say how far the run is."""
        raise NotImplementedError

    def account(self) -> Account:
        """Ask everyone what became of it; all parts run."""
        raise NotImplementedError

    def run(self) -> Account:
        """Do it all.

        Raises
        ------
        InfraError
            A part did not come back, or something takes too long.
        """
        self.deployment.register()
        self.revive()
        self.begin()
        said = self.clock.monotonic()
        self._next_at = said + self.chance.uniform(*self.between)
        while self.step():
            if fault := self.due():
                self._inject(fault)
                self._next_at = self.clock.monotonic() + self.chance.uniform(*self.between)
            self.revive()
            if self.clock.monotonic() - said >= _PROGRESS:
                said = self.clock.monotonic()
                faults = ", ".join(f"{fault} {count}" for fault, count in self.injected.items())
                self.progress.step(f"  {self.in_words()}; faults: {faults}")
            self.clock.sleep(_LOOK)
        self.revive()
        return self.account()

    def due(self) -> str:
        """Return the fault whose time has come; empty: none."""
        if self.clock.monotonic() < self._next_at or not self.left:
            return ""
        self.left -= 1
        self._next = self._next or self.chance.sample(self.faults, len(self.faults))
        return self._next.pop()

    def revive(self) -> None:
        """Start every part that does not run, at first, after a kill, or as it has ended by itself."""
        running = {process.name: process for process in self.deployment.processes if process.is_alive}
        for name, start in self.parts().items():
            if process_name(name) not in running:
                start()

    def demand(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait for something, while every part is kept running.

        Raises
        ------
        InfraError
            It takes too long.
        """

        def holds() -> bool:
            self.revive()
            return condition()

        self.progress.demand(holds, seconds, what)

    def _inject(self, fault: str) -> None:
        self.injected[fault] += 1
        if fault == STANDSTILL:
            # Whether what is on its way arrives, nobody knows meanwhile.
            with self.deployment.broker.frozen():
                self.clock.sleep(self.chance.uniform(*_STANDS))
        elif fault == BROKER:
            begin = self.clock.monotonic()
            self.deployment.broker.kill()
            self.deployment.broker.start()
            self.broker_away = max(self.broker_away, self.clock.monotonic() - begin)
        else:
            self.deployment.processes.kill(process_name(fault))


def process_name(part: str) -> str:
    """Return the name of a part's process."""
    return part.replace(" ", "-")


def play(
    make: Callable[[Deployment], FaultRun], title: str, all_is_well: str, folder: Path, name: str, **settings: Any
) -> None:
    """Make one fault run on a testbed of its own, and print its account; the exit code is 1 if anything is wrong."""
    progress = Progress(OUT, SystemClock())
    with terminable(), testbed(folder, progress) as bed, bed.deployment(name, **settings) as deployment:
        run = make(deployment)
        account = run.run()
    table = Table("what", "number", title=title)
    for fault, count in run.injected.items():
        table.add_row(fault if fault == STANDSTILL else f"kill -9 of the {fault}", f"{count:,}")
    for what, number in account.rows:
        table.add_row(what, number if isinstance(number, str) else f"{number:,}")
    if account.more is not None:
        progress.console.print(account.more)
    progress.console.print(table)
    for text in account.wrong[:_MOST_SHOWN]:
        progress.console.print(f"[red]wrong[/red]  {escape(text)}")
    if account.wrong:
        progress.console.print(f"{len(account.wrong)} findings")
        raise typer.Exit(1)
    progress.console.print(all_is_well)

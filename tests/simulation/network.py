"""Connections between clients and brokers: requests take time, and are lost, late or answered for nobody."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.simulation.scheduler import Process, Scheduler

LOST = object()
"""The answer to a request whose connection was lost: whether it was carried out is not known."""


@dataclass(slots=True)
class Overtaken:
    """A request that is held until others have overtaken it."""

    process: Process
    left: int
    arrive: Callable[[], None]


class Network:
    """All connections to the brokers.

    Parameters
    ----------
    note
        Takes what happens, for the time line: who, what.
    """

    def __init__(self, scheduler: Scheduler, note: Callable[[str, str], None]) -> None:
        self.scheduler, self.note = scheduler, note
        self.is_down = False
        """Whether no broker answers."""
        self.links: list[Link] = []
        self.slow_until = 0.0
        """Up to which simulated time requests take far longer than usual [s]."""
        self.holds: list[tuple[str, float]] = []
        """Requests that are to be held on the wire: what (part of it), for how long [s]. The first that fits is held,
        its connection is lost, and it arrives later all the same."""
        self.overtakings: list[tuple[str, int]] = []
        """The same, by how many later requests of its process overtake it."""
        self.overtaken: list[Overtaken] = []
        """What is held so now."""
        self.slowed: dict[str, float] = {}
        """Time that certain requests take longer on their way [s], so that others arrive first: of all clients, or of
        the one whose name is before the request."""
        self.unserved: frozenset[str] = frozenset()
        """Requests that nobody carries out now, as the disk of their coordinator is full; clients send them again."""
        self.losses: list[tuple[str, str]] = []
        """Requests, by a part of their name, of which the "request" or the "answer" is to be lost."""
        self.kills: list[tuple[str, bool]] = []
        """Requests, by a part of their name, at which their process is killed, and whether they are carried out."""
        self.kill: Callable[[str], None] = lambda name: None
        """Kills a process."""
        self.spared: set[str] = set()
        """Processes that are never killed."""

    def latency(self) -> float:
        """Draw the time that one way takes [s]."""
        random = self.scheduler.random
        usual = 0.0002 + 0.002 * random.random()
        return usual + (0.4 * random.random() if self.scheduler.now < self.slow_until else 0.0)

    def go_down(self, seconds: float) -> None:
        """Let no broker answer for some time: all connections are lost."""
        self.is_down = True
        for link in list(self.links):
            link.drop()
        self.scheduler.at(seconds, self.come_up)

    def come_up(self) -> None:
        self.is_down = False
        for link in list(self.links):
            link.on_up()

    def overtake(self, process: Process) -> None:
        """Count a request of a process, and let those arrive that have been overtaken often enough."""
        for one in [one for one in self.overtaken if one.process is process]:
            one.left -= 1
            if one.left <= 0:
                self.overtaken.remove(one)
                one.arrive()

    def chosen(self, faults: list[Any], what: str) -> Any:
        """Take the first fault that is meant for a request, if there is one."""
        for fault in faults:
            if fault[0] in what:
                faults.remove(fault)
                return fault
        return None


class Link:
    """The connections of one client."""

    def __init__(self, network: Network, process: Process, name: str) -> None:
        self.network, self.process, self.name = network, process, name
        self.is_open = True
        self.on_drop: Callable[[], None] = lambda: None
        """Called when a connection was lost."""
        self.on_up: Callable[[], None] = lambda: None
        """Called when the brokers answer again."""
        self._number = 0
        """Of the present connection."""
        self._waiting: dict[int, Callable[[Any], None]] = {}
        self._calls = 0
        network.links.append(self)
        process.at_death.append(self.close)

    def close(self) -> None:
        self.is_open = False
        self._number += 1
        self._waiting.clear()
        self.on_drop = self.on_up = lambda: None
        if self in self.network.links:
            self.network.links.remove(self)

    def drop(self) -> None:
        """Lose the connection: requests that have not arrived are lost, and answers that are on their way."""
        if not self.is_open:
            return
        self._number += 1
        waiting, self._waiting = self._waiting, {}
        self.on_drop()
        for answer in waiting.values():
            self._later(0.0, answer, LOST)

    def call(self, what: str, request: Callable[[], Any], answer: Callable[[Any], None]) -> None:
        """Send a request, and hand the answer on, or `LOST`."""
        network, scheduler = self.network, self.network.scheduler
        if not self.is_open:
            return
        if network.is_down:
            self._later(0.1 + 0.4 * scheduler.random.random(), answer, LOST)
            return
        self._calls += 1
        self._waiting[self._calls] = answer
        slowed = network.slowed.get(what, 0.0) + network.slowed.get(f"{self.name} {what}", 0.0)
        wait = network.latency() + slowed
        scheduler.at(wait, self._arrive, self._number, self._calls, what, request)

    def _arrive(self, connection: int, call: int, what: str, request: Callable[[], Any]) -> None:
        network = self.network
        if connection != self._number:
            return
        whole = f"{self.name} {what}"
        if network.holds and (held := network.chosen(network.holds, whole)):
            network.note("network", f"holds {whole} for {held[1]:.2f} s, and the connection is lost")
            network.scheduler.at(held[1], self._arrive_late, whole, request)
            self.drop()
            return
        if network.overtakings and (held := network.chosen(network.overtakings, whole)):
            network.note("network", f"holds {whole} until {held[1]} more have come, and the connection is lost")
            late = Overtaken(self.process, held[1], lambda: self._arrive_late(whole, request))
            network.overtaken.append(late)
            self.drop()
            return
        if network.overtaken:
            network.overtake(self.process)
        loss = network.chosen(network.losses, whole) if network.losses else None
        if loss and loss[1] == "request":
            network.note("network", f"loses request {whole}")
            self.drop()
            return
        may_be_killed = network.kills and self.process.name not in network.spared
        killed = network.chosen(network.kills, whole) if may_be_killed else None
        if killed and not killed[1]:
            network.note("network", f"loses request {whole}, as its process is killed")
            network.kill(self.process.name)
            return
        result = LOST if what in network.unserved else request()
        if killed:
            network.note("network", f"carries out {whole}, as its process is killed")
            network.kill(self.process.name)
            return
        if loss:
            network.note("network", f"loses the answer to {whole}")
            self.drop()
            return
        network.scheduler.at(network.latency(), self._deliver, connection, call, result)

    def _arrive_late(self, whole: str, request: Callable[[], Any]) -> None:
        result = LOST if whole.split()[-1] in self.network.unserved else request()
        self.network.note("network", f"delivers {whole}, late: {result}")

    def _deliver(self, connection: int, call: int, result: Any) -> None:
        if connection == self._number and call in self._waiting:
            self._later(0.0, self._waiting.pop(call), result)

    def _later(self, delay: float, answer: Callable[[Any], None], result: Any) -> None:
        """Hand an answer to the process, once it runs."""
        scheduler = self.network.scheduler
        stopped = self.process.stopped_until - scheduler.now
        if delay <= 0.0 and stopped <= 0.0:
            if not self.process.is_dead:
                answer(result)
            return
        scheduler.at(max(delay, stopped), self._later, 0.0, answer, result)

    def ask(self, what: str, request: Callable[[], Any], until: float) -> Any:
        """Send a request and let the current task wait for the answer, `LOST`, or None when the time is over [s]."""
        scheduler = self.network.scheduler
        task, box = scheduler.current, []
        assert task is not None

        def answer(result: Any) -> None:
            box.append(result)
            scheduler.wake(task)

        self.call(what, request, answer)
        while not box and scheduler.now < until:
            scheduler.pause(until)
        return box[0] if box else None

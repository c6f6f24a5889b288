"""Commands of a simulated site: operators who give them, a controller that executes them, and what became of each."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from facade.flows.commands.composition import CommandsEnd
from facade.flows.commands.gateway import Gateway
from facade.flows.commands.lease import TERM
from facade.flows.commands.messages import COMMANDS, CommandMessage, decode_command
from facade.flows.commands.outcomes import FINAL
from facade.kernel.bus.kafka.bus import KafkaBus
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.kafka.producer import KafkaSender
from facade.kernel.bus.port import Record, Sending
from facade.kernel.errors import CommandRefused, NotSent, OutcomeUnknown
from facade.kernel.icd.load import load
from facade.kernel.runtime.composition import Server
from facade.sdk.controller.api import Rejected
from facade.sdk.controller.call import Call
from tests.simulation.scheduler import Process
from tests.simulation.threads import Event
from tests.support.arguments import example

if TYPE_CHECKING:
    from tests.simulation.site import Site

ICD = load()
ARGUMENTS = {"AssignResources": "assignres", "ReleaseResources": "releaseres", "Configure": "configure", "Scan": "scan"}
"""Families of arguments, by command."""
_TRIES, _AGAIN = 3, 0.2
"""Calls with one transaction_id, and the share of them whose answer gets lost."""
_PATIENCE = 2.0
"""Longest pause of an operator between two commands [s]."""


@dataclass(slots=True)
class Given:
    """One command that was put on the bus, or perhaps not."""

    device: str
    name: str
    not_after: int
    repeatable: bool
    transaction: tuple[str, str, str] = ("", "", "")
    """Device, command and transaction_id."""
    sent: str = "unknown"
    """sent, not sent, or unknown."""
    outcome: str = ""
    """The first final one that anybody was shown."""


@dataclass(slots=True)
class Giver:
    """A device server that gives commands of a device, until another one does."""

    process: Process
    first: float
    newest: float = 0.0


class Witnessed:
    """A command on its way, whose end is written down."""

    def __init__(self, sending: Sending, given: Given) -> None:
        self._sending, self._given = sending, given

    def result(self) -> None:
        try:
            self._sending.result()
        except NotSent:
            self._given.sent = "not sent"
            raise
        self._given.sent = "sent"


class WitnessedBus(KafkaBus):
    """The bus of a device server, whose commands are written down as they are sent."""

    def __init__(self, connection: Connection, client: str, commanding: "Commanding", process: Process) -> None:
        super().__init__(connection, client=client)
        self._commanding, self._process = commanding, process

    def sender(self) -> KafkaSender:
        sender = super().sender()
        send, given = sender.send, self._commanding.given

        def witnessed(record: Record, timeout: float) -> Sending:
            if record.topic != COMMANDS:
                return send(record, timeout)
            command = decode_command(record.value)
            transaction = (command.device, command.command, command.transaction_id)
            if command.id not in given:
                self._commanding.give(self._process, command.device, command.issued / 1e6)
            one = given.setdefault(
                command.id,
                Given(command.device, command.command, command.not_after, command.repeatable, transaction),
            )
            return Witnessed(send(record, timeout), one)

        sender.send = witnessed  # type: ignore[method-assign]
        return sender


class Commanding:
    """Who gives commands, who executes them, and what became of each."""

    def __init__(self) -> None:
        self.given: dict[str, Given] = {}
        """By id."""
        self.executed: dict[str, list[int]] = defaultdict(list)
        """When executions began, by the controller's clock [Unix us], by id."""
        self.begun_by: dict[str, list[str]] = defaultdict(list)
        """Who has begun each command, one after the other."""
        self.declined: set[str] = set()
        """Ids of commands that a handler has refused."""
        self.wrong: list[str] = []
        self.is_giving = True
        self._again: dict[str, tuple[Process, str, str]] = {}
        """By device: calls whose answer got lost, and who is not to be asked again."""
        self._givers: dict[str, list[Giver]] = defaultdict(list)
        """By device: who has given commands, one after the other."""
        self._number = 0
        self.refused = 0

    # The controllers

    def execute(self, process: Process, call: Call, handler: Any) -> Any:
        """Let a handler execute a command, and take note of it."""
        now_us = process.clock.now_us()
        if not process.is_dead:
            self.executed[call.id].append(now_us)
            self.begun_by[call.id].append(process.name)
            if now_us > call.message.not_after:
                self.wrong.append(f"{call.command} began {(now_us - call.message.not_after) / 1e6:.3f} s too late")
        try:
            return handler(call)
        except Rejected:  # before it has changed anything
            self.declined.add(call.id)
            raise

    # The operators

    def operate(self, site: "Site", process: Process, server: Server) -> None:
        """Let an operator give commands to each device of a server, by Tango calls into its process."""
        gateway, end = server.find(Gateway), server.find(CommandsEnd)
        if end is not None:
            process.spawn(lambda: end.run(Event(site.scheduler)))  # type: ignore[arg-type]
        if gateway is not None:
            for device in server.devices_with_commands():
                process.spawn(lambda device=device: self._give(site, process, gateway, device))

    def _give(self, site: "Site", process: Process, gateway: Gateway, device: str) -> None:
        random = site.scheduler.random
        names = [command.name for command in gateway.classes[device].commands]
        while True:
            process.clock.sleep(random.random() * _PATIENCE)
            if not self.is_giving:
                continue
            again = self._again.get(device)
            if again is not None and again[0] is not process:
                _, name, argument = self._again.pop(device)
            else:
                name = random.choice(self._sensible(gateway, device, names))
                argument = self._argument(name)
            for _ in range(_TRIES if argument else 1):  # with its transaction_id a call may be repeated
                try:
                    gateway.give(device, name, argument)
                    site.trace.note(process.name, f"took {name} of {device}")
                    if random.random() > _AGAIN:
                        break  # else its answer got lost, and the operator asks again
                except CommandRefused:
                    self.refused += 1
                    break
                except (NotSent, OutcomeUnknown) as error:
                    site.trace.note(process.name, f"{name} of {device}: {type(error).__name__}")
                if argument and any(one.name == process.name and not one.is_dead for one in site.others):
                    self._again[device] = process, name, argument  # there is another server of this name to ask
                    break
                process.clock.sleep(0.05 + random.random())

    def _sensible(self, gateway: Gateway, device: str, names: Sequence[str]) -> Sequence[str]:
        """Return what is allowed now, as operators look first."""
        state, obs_state = gateway.show(device)
        commands = {one.name: one for one in gateway.classes[device].commands}
        found = [
            name
            for name in names
            if (not commands[name].state or state in commands[name].state)
            and (obs_state is None or not commands[name].obs_state or obs_state in commands[name].obs_state)
        ]
        return found or names

    def _argument(self, name: str) -> str | None:
        family = ARGUMENTS.get(name)
        if family is None:
            return None
        self._number += 1
        document = example(family, "1.0") | {"transaction_id": f"txn-sim-20270115-{self._number:05d}"}
        return msgspec.json.encode(document).decode()

    def give(self, process: Process, device: str, at: float) -> None:
        """Take note of who gives a command, and when, by the clock of its host [Unix s].

        Of servers of one name that follow each other, each has held the lease for its whole term.
        """
        givers = self._givers[device]
        if not givers or givers[-1].process is not process:
            givers.append(Giver(process, at))
        now = givers[-1]
        if len(givers) > 2 and givers[-3].process is process and (gap := now.first - givers[-3].newest) < TERM - 0.2:
            self.wrong.append(f"two servers give commands of {device} in turn, within {gap:.2f} s")
        now.newest = at

    def order(self, command: CommandMessage) -> None:
        """Take note of a command that a controller gives."""
        transaction = (command.device, command.command, command.transaction_id)
        one = Given(command.device, command.command, command.not_after, command.repeatable, transaction, "sent")
        self.given.setdefault(command.id, one)

    # What became of them

    def look(self, server: Server) -> None:
        """Take note of the outcomes that a server shows."""
        gateway = server.find(Gateway)
        if gateway is None:
            return
        for id, one in self.given.items():
            if one.device in gateway.classes and (tracked := gateway.tracker.find(id)) is not None:
                if one.outcome and tracked.status in FINAL:
                    if tracked.status != one.outcome:
                        self.wrong.append(f"{one.name} {id} was {one.outcome}, and then {tracked.status}")
                elif tracked.status in FINAL:
                    one.outcome = tracked.status

"""Commands to the dome, in the device server: durable before their caller has an id, with one outcome each.

A command is on all in-sync replicas when the call returns. The controller (`observatory.dome_controller`) acknowledges
it on another topic, and its first outcome there counts. If none has come by the deadline, the device server writes
TIMED_OUT there. So the log alone says what became of a command, and a device server that restarts knows it again.
"""

import secrets
import threading
from collections.abc import Iterator
from typing import Any

from facade.kernel.bus.port import Record
from facade.kernel.clock import Time, as_duration, as_seconds
from facade.kernel.codec.decode import BatchDecoder
from facade.kernel.codec.json_schema import compile_message
from facade.kernel.errors import CommandRefused
from facade.kernel.icd.model import CommandDefinition
from facade.kernel.outcome import USED, Outcome, Suppressed, Unused
from facade.kernel.reading import Value
from facade.kernel.recent import Bounded
from facade.kernel.runtime.composition import Server
from facade.kernel.runtime.flow import Flow
from facade.kernel.runtime.view import NewestView
from facade.kernel.runtime.worker import as_record
from observatory.alarms import Alarms, Finding

CLASS, COMMANDS, ACKS = "ObsDome", "commands", "command-acks"
GIVEN, ACCEPTED, COMPLETED, REJECTED, TIMED_OUT = "GIVEN", "ACCEPTED", "COMPLETED", "REJECTED", "TIMED_OUT"
OUTCOMES = (COMPLETED, REJECTED, TIMED_OUT)
_MOST = 1_000
"""Most commands that are remembered."""
_AGAIN = 1.0
"""Time after which an outcome that has not come back from the log is written again [s]."""


class Newest(Flow):
    """The messages of a topic by the id of their command; after an outcome nothing comes."""

    def __init__(self, server: Server, topic: str) -> None:
        self.topic, name = topic, str(server.icd.topics[topic].message)
        self.message: Any = compile_message(name, server.icd.messages[name])
        self._decoder = BatchDecoder(self.message)
        self.by_id: Bounded[str, Any] = Bounded(_MOST)

    def fold(self, record: Record, *, count: bool) -> Outcome:
        """Keep a message; see `facade.kernel.runtime.flow.Flow`."""
        one: Any = self._decoder.decode_one(record.value)
        if isinstance(one, Unused):
            return one
        if getattr(self.by_id.get(one.id), "status", None) in OUTCOMES:
            return Suppressed("after-outcome")
        self.by_id[one.id] = one
        return USED


class Dome:
    """The commands of the dome; a periodic task ends what is overdue."""

    def __init__(self, server: Server, device: str) -> None:
        self._server, self._device, self._sender = server, device, server.sender()
        self.commands, self.acks = Newest(server, COMMANDS), Newest(server, ACKS)
        self._giving, self._told = threading.Lock(), dict[str, float]()

    def status(self, id: str) -> str:
        """Return the state of a command."""
        return self.acks.by_id[id].status if id in self.acks.by_id else GIVEN

    def pending(self) -> list[Any]:
        """Return the commands without an outcome."""
        return [one for one in list(self.commands.by_id.values()) if self.status(one.id) not in OUTCOMES]

    def state(self) -> str:
        """Return the State of the dome, from its last completed command."""
        if any(self.status(one.id) == ACCEPTED for one in self.pending()):
            return "MOVING"
        done = [one for one in list(self.acks.by_id.values()) if one.status == COMPLETED]
        return self._server.icd.classes[CLASS].commands[done[-1].command == "Close"].targets[0] if done else "UNKNOWN"

    def give(self, entry: CommandDefinition) -> str:
        """Write a command, and return its id when all in-sync replicas have it.

        Raises
        ------
        CommandRefused
            It is not allowed now; nothing was written.
        NotSent, OutcomeUnknown
            The bus did not confirm it in time.
        """

        def refused(text: str) -> CommandRefused:
            return CommandRefused("API_CommandNotAllowed", text, f"{CLASS}.{entry.name}")

        if not self._server.has_read(COMMANDS, ACKS):
            raise refused("the commands given before have not been read yet; try again in a second")
        with self._giving:  # two callers may each find that nothing is pending
            if waiting := self.pending():
                raise refused(f"expected a dome at rest, got {waiting[0].command} without an outcome yet")
            if self.state() not in entry.state:
                raise refused(f"expected the State {' or '.join(entry.state)}, got {self.state()}")
            now = self._server.clock.now_us()
            command = self.commands.message(
                schema="command/1",
                id=f"{as_seconds(now):.3f}_{secrets.token_hex(4)}_{entry.name}",
                device=self._device,
                command=entry.name,
                issued=now,
                not_after=now + as_duration(entry.start_within),
                deadline=now + as_duration(entry.deadline),
            )
            self._sender.send(
                as_record(COMMANDS, self._device, command), self._server.settings.command_timeout
            ).result()
            self.commands.by_id[command.id] = command  # the next call finds it before it has come back
        return str(command.id)

    def perform(self) -> None:
        """Write TIMED_OUT for what is overdue; see `facade.kernel.runtime.event_loop.PeriodicTask`."""
        if not self._server.has_read(COMMANDS, ACKS):
            return
        now, monotonic = self._server.clock.now_us(), self._server.clock.monotonic()
        for one in self.pending():
            if now > one.deadline and monotonic - self._told.get(one.id, float("-inf")) >= _AGAIN:
                self._told[one.id] = monotonic
                text = "no outcome within the deadline; it may have been executed"
                about = {"id": one.id, "device": one.device, "command": one.command, "time": now, "text": text}
                ack = self.acks.message(schema="command-ack/1", status=TIMED_OUT, **about)
                self._server.bus.writer().send(as_record(ACKS, self._device, ack))

    def end(self) -> None:
        """Do nothing: the next start finds what is overdue."""

    def find(self, now: Time) -> Iterator[Finding]:
        """Return the alarm about a dome that does not answer, as its last outcome says."""
        outcomes = [one for one in self.acks.by_id.values() if one.status in (COMPLETED, TIMED_OUT)]
        if outcomes:
            last = outcomes[-1]
            yield Finding("domeSilent", last.status == TIMED_OUT, f"{last.id}: {last.text or last.status}")


class DomeView(NewestView):
    """Shows the dome; see `facade.kernel.runtime.view.NewestView`."""

    what = "commands"

    def __init__(self, device: str, server: Server, dome: Dome) -> None:
        super().__init__(device, server, COMMANDS, ACKS)
        self._dome = dome

    def _look(self, now: Time) -> dict[str, Value]:
        newest = next(reversed(self._dome.commands.by_id.values()), None)
        last = () if newest is None else (newest.id, newest.command, self._dome.status(newest.id))
        return {"lastCommand": last}

    def _judge(self, now: Time) -> tuple[str, list[str]]:
        return self._dome.state(), [f"{one.command} is under way." for one in self._dome.pending()]


def compose(server: Server) -> None:
    """Add the dome to a device server."""
    device = server.only_device(CLASS)
    dome = server.share(Dome, lambda: Dome(server, device))
    server.flows += [dome.commands, dome.acks]
    server.periodic_tasks.append(dome)
    server.views.append(DomeView(device, server, dome))
    Alarms.of(server).finders.append(dome.find)

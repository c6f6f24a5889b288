"""Controllers of a simulated site: one or two that share the devices, with orders to those below in some runs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from facade.flows.commands.messages import ACKS, COMMANDS, AckMessage, CommandMessage, decode_ack, decode_command
from facade.flows.commands.outcomes import BY_FACADE, FINAL
from facade.kernel.bus.kafka.bus import KafkaBus
from facade.kernel.bus.kafka.group import KafkaGroupMember
from facade.kernel.icd.load import load
from facade.kernel.instances import classes_of
from facade.sdk.controller.api import Handler
from facade.sdk.controller.call import Call
from facade.sdk.controller.command_loop import CommandLoop
from facade.sdk.controller.process import Threads, sign_of_life
from facade.sdk.controller.simulator.controller import MASTER, PROCESSING, SUBARRAY, WORKER, SimulatedController
from facade.sdp.device_state import TOPIC as STATES
from facade.sdp.device_state import StateMessage, decode_state
from tests.simulation.logs import Entry
from tests.simulation.scheduler import Process
from tests.simulation.threads import Event

if TYPE_CHECKING:
    from tests.simulation.site import Site

ICD = load()
GROUP = "controller"
"""Consumer group of the controllers, and name of the first one."""
_UNAWARE_US = 12_000_000
"""Who stands still for 9 s begins an order without having read that it is not wanted any more [us]."""
PAIR = (GROUP, f"{GROUP}-b")
_SHARE = 0.4
"""Of the runs with commands: those with two controllers, and, drawn apart, those with orders."""


@dataclass(slots=True)
class Controllers:
    """Which controllers run, and what they have told."""

    names: Sequence[str]
    """Of those that share subarrays and SDP as a whole."""
    gives_orders: bool
    """Whether commands go on to the controllers below; then one more executes these orders."""
    newest: dict[tuple[str, str], StateMessage] = field(default_factory=dict)
    """What was told last of each device and attribute."""
    outcomes: dict[str, AckMessage] = field(default_factory=dict)
    """The first outcome of each command on the log."""
    orders: dict[str, CommandMessage] = field(default_factory=dict)
    """By id."""
    _read: dict[tuple[str, int], int] = field(default_factory=dict)

    def add(self, site: "Site") -> None:
        for name in self.names:
            site.bodies[name] = partial(self._control, site, GROUP, (SUBARRAY, MASTER))
        if self.gives_orders:
            site.bodies["executors"] = partial(self._control, site, "executors", (PROCESSING, WORKER))

    def _control(self, site: "Site", group: str, executes: Sequence[str], process: Process) -> None:
        """Be a controller; see `facade.sdk.controller.process.run`."""
        name = process.name
        simulated = SimulatedController(
            ICD, component=name, faults=[], report=None, seed=1, speed=4.0, clock=process.clock,
            executes=executes, orders=self.gives_orders,
        )  # fmt: skip
        controller = simulated.controller
        controller.group = group
        for command, handler in list(controller.handlers.items()):
            controller.handlers[command] = partial(_execute, site, process, handler)
        devices = classes_of(ICD, site.settings, controller.classes)
        connection = site.connection(process)
        bus = KafkaBus(connection, client=name)
        member = KafkaGroupMember(connection, COMMANDS, group=group, member=name, health=bus.health)
        ordered = classes_of(ICD, site.settings, controller.orders)
        loop = CommandLoop(
            controller, ICD, devices, member, bus.open_reader, bus.writer(), clock=process.clock, ordered=ordered
        )
        sign = sign_of_life(controller, devices, bus.writer().send, process.clock)
        Threads(loop, list(devices), sign, Event(site.scheduler), clock=process.clock).run()  # type: ignore[arg-type]

    # What they have told, and what must hold of it

    def look(self, site: "Site") -> None:
        """Take note of what is new on the log."""
        for entry in self._new(site, COMMANDS):
            command = decode_command(entry.value)
            if isinstance(command, CommandMessage) and command.parent:
                self.orders.setdefault(command.id, command)
                site.commanding.order(command)
        for entry in self._new(site, ACKS):
            ack = decode_ack(entry.value)
            if isinstance(ack, AckMessage) and ack.status in FINAL:
                self.outcomes.setdefault(ack.id, ack)
                if ack.id in self.orders:
                    site.commanding.given[ack.id].outcome = self.outcomes[ack.id].status
        for entry in self._new(site, STATES):
            state = decode_state(entry.value)
            if isinstance(state, StateMessage) and state.origin in site.bodies:
                before = self.newest.get((state.device, state.attribute))
                if before is None or before.time <= state.time:
                    self.newest[state.device, state.attribute] = state

    def _new(self, site: "Site", topic: str) -> Iterator[Entry]:
        for partition in site.partitions(topic):
            place = topic, partition.number
            yield from (one for one in partition.entries if one.offset >= self._read.get(place, 0) and not one.is_mark)
            self._read[place] = partition.end

    def misplaced(self, site: "Site") -> Iterator[str]:
        """Return what is on the log behind a state that was told later, or is shown in its place."""
        last: dict[tuple[str, str], StateMessage] = {}
        for entry in site.entries(STATES):
            state = decode_state(entry.value)
            if isinstance(state, StateMessage):
                last[state.device, state.attribute] = state
        for (device, attribute), newest in self.newest.items():
            if (now := last[device, attribute]).time < newest.time:
                yield (
                    f"{device}/{attribute}: {now.value} of {now.command} by {now.origin} is behind {newest.value} of"
                    f" {newest.command} by {newest.origin}"
                )
            elif attribute == "obsState" and (shown := site.value(device, attribute)) != newest.value:
                yield f"{device}/{attribute} is {newest.value} by the log, and shown as {shown}"

    def unordered(self, site: "Site") -> Iterator[str]:
        """Return orders without an outcome or given twice, and what is done although an order of it is not."""
        given: dict[tuple[str, str, str], str] = {}
        for id, order in self.orders.items():
            if (before := given.setdefault((order.parent, order.device, order.command), id)) != id:
                yield f"{order.parent} has given {order.command} to {order.device} twice, as {before} and as {id}"
            outcome, parent = self.outcomes.get(id), self.outcomes.get(order.parent)
            if outcome is None:
                yield f"order {id} of {order.parent} has no outcome"
            elif parent is not None and parent.status == "COMPLETED" != outcome.status:
                yield f"{order.parent} is COMPLETED, and its order {id} is {outcome.status}: {outcome.text}"
            times = site.commanding.executed.get(id, ())
            unwanted = parent is not None and parent.status not in ("COMPLETED", *BY_FACADE)
            if parent is not None and unwanted and times and times[-1] > parent.time + _UNAWARE_US:
                yield f"order {id} began {(times[-1] - parent.time) / 1e6:.1f} s after {order.parent} had ended"
            if outcome is not None and outcome.status == "COMPLETED" and not times:
                yield f"order {id} is COMPLETED, and was never executed"

    def late(self, site: "Site") -> Iterator[str]:
        """Return states that were told of a command after its outcome, but for those of who began it last."""
        for (device, attribute), state in self.newest.items():
            outcome, begun = self.outcomes.get(state.command), site.commanding.begun_by[state.command]
            if outcome is None or outcome.status in BY_FACADE:
                continue
            if begun[-1:] == [state.origin] and outcome.origin in begun and outcome.origin != state.origin:
                continue  # it had begun it again before the other one's outcome was there, and ends that as well
            if outcome.origin == state.origin and any(one.name == state.origin for one in site.others):
                continue  # a second one of its name, which was started by mistake, took it for killed
            if state.time > outcome.time + 200_000:
                yield (
                    f"{device}/{attribute}: {state.value} of {state.command} by {state.origin} was told"
                    f" {(state.time - outcome.time) / 1e6:.2f} s after it was {outcome.status} by {outcome.origin}"
                )


def _execute(site: "Site", process: Process, handler: Handler, call: Call) -> object:
    return site.commanding.execute(process, call, handler)


def draw_controllers(seed: int) -> Controllers:
    random = Random(f"controllers-{seed}")
    names = PAIR if random.random() < _SHARE else (GROUP,)
    return Controllers(names, random.random() < _SHARE)

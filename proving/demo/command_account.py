"""The account of a demo's commands and orders: the topics, the devices and the controllers are compared."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

import msgspec

from facade.bus.port import Record
from facade.clock import as_seconds
from facade.controller.simulator.controller import ExecutionLine
from facade.flows.commands.messages import AckMessage, CommandMessage
from facade.flows.commands.outcomes import ACCEPTED, BY_FACADE, COMPLETED, FINAL, UNDELIVERED
from facade.flows.commands.past import CommandFamily, One
from proving.demo.account import BalanceLine
from proving.demo.plan import OBSERVATION, Given


class HistoryEntry(msgspec.Struct, frozen=True):
    """As much of an entry of GetCommandHistory as is compared."""

    id: str
    status: str


class CommandsFound(msgspec.Struct, frozen=True, kw_only=True):
    """What everyone says."""

    given: Sequence[Given]
    """What TM gave, in the order of its calls."""
    commands: Sequence[CommandMessage]
    """The topic, in its order for each device."""
    acks: Sequence[AckMessage]
    """The topic, in its order for each device."""
    histories: Mapping[str, Sequence[HistoryEntry]]
    """GetCommandHistory by device."""
    executions: Sequence[ExecutionLine]
    """The controllers' report."""
    last: Mapping[str, str] = {}
    """The command that TM gives each device in the end, where it is not that of a whole observation."""


class CommandLine(msgspec.Struct, frozen=True, kw_only=True):
    """One command in the report of a demo."""

    device: str
    name: str
    id: str
    called: float
    """When it was called [Unix s]."""
    calls: int
    """How often it had to be called."""
    durable: float | None
    """Duration of the call after which it was durable [s]; None: its answer was lost, or it was refused."""
    begun: float | None
    """When the controller accepted it, after the facade had issued it [s]; None: never."""
    executions: int
    """How often the controller has begun it."""
    outcome: str
    """The first final acknowledgement; empty: none, or it was refused."""
    ended: float | None
    """When that was written [Unix s]."""
    text: str
    path: tuple[str, ...]
    """What TM saw of obsState from the call until the next one."""


def timeline(found: CommandsFound) -> list[CommandLine]:
    """Return what became of each command, in the order of the calls."""
    acks = _by_id(found.acks)
    issued = {command.id: command.issued for command in found.commands}
    executions = Counter(line.id for line in found.executions)
    lines = []
    for given in sorted(found.given, key=lambda one: one.called):
        final = next((ack for ack in acks[given.id] if ack.status in FINAL), None)
        accepted = next((ack for ack in acks[given.id] if ack.status == ACCEPTED), None)
        refused = given.refusals[-1] if given.refusals and not given.id else ""
        lines.append(
            CommandLine(
                device=given.device,
                name=given.name,
                id=given.id,
                called=given.called,
                calls=given.calls,
                durable=given.took,
                begun=as_seconds(accepted.time - issued[given.id]) if accepted and given.id in issued else None,
                executions=executions[given.id],
                outcome=final.status if final else "",
                ended=as_seconds(final.time) if final else None,
                text=final.text if final else refused,
                path=tuple(given.path),
            )
        )
    return lines


def compare_commands(found: CommandsFound) -> list[BalanceLine]:
    return [
        BalanceLine(device, what, expected, abs(expected - len(wrong)))
        for device in sorted(found.histories)
        for what, expected, wrong in _checks(DeviceCommands(found, device))
    ]


def _checks(one: "DeviceCommands") -> list[tuple[str, int, Set[str]]]:
    """Return each figure of a device: its name, its expected value, and the commands with which it is wrong."""
    count = len(one.given)
    return [
        ("given by TM, on the topic commands", count, one.given - one.written),
        ("on the topic commands, not given by TM", 0, one.written - one.given),
        ("with exactly one outcome on command-acks", count, {id for id in one.given if len(one.outcomes[id]) != 1}),
        ("the same outcome in GetCommandHistory", count, one.reported_differently(one.given)),
        ("in GetCommandHistory, not given by TM", 0, one.told.keys() - one.given),
        ("COMPLETED, but never begun", 0, one.completed() - one.begun.keys()),
        ("not repeatable, and begun twice", 0, one.begun_twice()),
        ("begun after not_after", 0, one.begun_late()),
    ]


def wrong_commands(found: CommandsFound) -> list[str]:
    """Name each command with which something is wrong; empty when all is well."""
    failures = [f"{g.device}: {g.name}: was refused: {g.refusals[-1]}" for g in found.given if not g.id]
    for device in sorted(found.histories):
        one = DeviceCommands(found, device)
        last = next((given for given in reversed(found.given) if given.device == device), None)
        end = found.last.get(device, OBSERVATION[-1].command)
        if last is None or last.name != end or last.reached is None:
            failures.append(f"{device}: expected the observation to get to its end, got to {last and last.name}")
        for what, expected, wrong in _checks(one):
            failures += [
                f"{device}: {id}: {'not ' if expected else ''}{what}; command-acks: {', '.join(one.outcomes[id])};"
                f" GetCommandHistory: {one.told.get(id, 'nothing')}"
                for id in sorted(wrong)
            ]
    return failures


class DeviceCommands:
    """What everyone says of the commands of one device, by id."""

    def __init__(self, found: CommandsFound, device: str) -> None:
        self.given = {given.id for given in found.given if given.device == device and given.id}
        mine = [command for command in found.commands if command.device == device]
        self.written = {command.id for command in mine if not command.parent}
        self.orders = {command.id for command in mine if command.parent}
        """Given by a controller, and not by TM."""
        self.tells = device in found.histories
        """Whether it is a Tango device, which tells what became of its commands."""
        told = {told.id: told.status for told in found.histories.get(device, ())}
        # A call that was refused as undelivered gave TM no id. If its command is on the topic, it counts.
        refused = {id for id, status in told.items() if status == UNDELIVERED} - self.given - self.written
        self.told = {id: status for id, status in told.items() if id not in self.orders | refused}
        self._told = told
        self.outcomes: dict[str, list[str]] = defaultdict(list)
        """Different ones, the first first: a controller may repeat an outcome, but not change it."""
        for ack in found.acks:
            if ack.device == device and ack.status in FINAL and ack.status not in self.outcomes[ack.id]:
                self.outcomes[ack.id].append(ack.status)
        for said in self.outcomes.values():
            # What a controller says behind the deadline, as it was killed for example, is late and changes nothing.
            if len(said) == 2 and said[0] in BY_FACADE and said[1] not in BY_FACADE:
                said.pop()
        self._executions = [line for line in found.executions if line.device == device]
        self.begun = Counter(line.id for line in self._executions)

    def reported_differently(self, ids: Iterable[str]) -> set[str]:
        """Return those of some commands whose first outcome the device does not show."""
        return {id for id in ids if self._told.get(id) not in self.outcomes[id][:1]}

    def completed(self) -> set[str]:
        """Return the commands that are said to have been done."""
        return {id for id, outcomes in self.outcomes.items() if outcomes[:1] == [COMPLETED]}

    def begun_twice(self) -> set[str]:
        """Return the commands that must not be repeated, and were."""
        return {line.id for line in self._executions if not line.repeatable and self.begun[line.id] > 1}

    def begun_late(self) -> set[str]:
        return {line.id for line in self._executions if line.begun_at > line.not_after and not line.again}


def _by_id(acks: Iterable[AckMessage]) -> dict[str, list[AckMessage]]:
    found: dict[str, list[AckMessage]] = defaultdict(list)
    for ack in acks:
        found[ack.id].append(ack)
    return found


DOWN = {"Configure": ("Prepare", "Load")}
"""What goes on from a subarray down to its worker: the orders of each level."""


class OrderLine(msgspec.Struct, frozen=True, kw_only=True):
    """One command that led to orders, or one of these, in the report of a demo."""

    depth: int
    """0: a command of TM; 1: an order for it; and so on."""
    device: str
    name: str
    id: str
    given: float
    """[Unix s]."""
    took: float | None
    """Until its outcome [s]; None: it has none."""
    outcome: str
    """The first final acknowledgement; empty: none."""
    text: str


def families(ids: Iterable[str], commands: Sequence[Record], acks: Sequence[Record]) -> list[One]:
    """Return commands with all orders below them, by the records of both topics."""
    found = []
    for id in ids:
        family = CommandFamily(id)
        for record in commands:
            family.add_command(record)
        family.gather()
        for record in acks:
            family.add_ack(record)
        found.append(family.first)
    return found


def order_lines(commands: Iterable[One]) -> list[OrderLine]:
    """Return the commands that led to orders, each with these behind it."""
    return [line for one in commands if one.orders for line in _lines(one, 0)]


def compare_orders(commands: Sequence[One], devices: Mapping[str, DeviceCommands], subarrays: int) -> list[BalanceLine]:
    """Return every figure of the account, by the kind of device.

    Parameters
    ----------
    commands
        TM's, with the orders below them.
    devices
        What everyone says of the commands of each device.
    """
    all_ = {one.id: one for command in commands for one in (command, *_below(command))}
    figures: Counter[tuple[str, str]] = Counter()
    expected: Counter[tuple[str, str]] = Counter()
    for device, said in devices.items():
        if not said.orders:
            continue
        count, kind = len(said.orders), device.split("/")[1]
        found = {
            "below a command of TM": (count, len(said.orders & all_.keys())),
            "with exactly one outcome": (count, sum(len(said.outcomes[id]) == 1 for id in said.orders)),
            "COMPLETED, but never begun": (0, len((said.completed() & said.orders) - said.begun.keys())),
            "begun after not_after": (0, len(said.begun_late() & said.orders)),
            "with more time than what they are for": (0, _too_long(all_, said.orders)),
        }
        if said.tells:
            same = count - len(said.reported_differently(said.orders))
            found["the same outcome in GetCommandHistory"] = (count, same)
        for what, (wanted, got) in found.items():
            expected[kind, what] += wanted
            figures[kind, what] += got
    lines = [BalanceLine(kind, what, wanted, figures[kind, what]) for (kind, what), wanted in expected.items()]
    return [*_followed(commands, subarrays), *lines]


def _followed(commands: Sequence[One], subarrays: int) -> Iterator[BalanceLine]:
    """Return whether each command of SDP came to all subarrays, and each Configure down to a worker."""
    switched = defaultdict[tuple[str, str], set[str]](set)
    for one in commands:
        device, name = _named(one)
        if one.orders and name not in DOWN:
            switched[device.split("/")[1], name] |= {_named(order)[0] for order in one.orders if _was_done(order)}
    for (kind, name), followed in switched.items():
        yield BalanceLine(kind, f"subarrays that followed {name}", subarrays, len(followed))
    for name, levels in DOWN.items():
        done = [one for one in commands if _named(one)[1] == name and _is_completed(one)]
        yield BalanceLine(
            "subarray", f"{name} that came down to a worker", len(done), sum(_goes_down(one, levels) for one in done)
        )


def _goes_down(one: One, levels: Sequence[str]) -> bool:
    if not levels:
        return True
    below = [order for order in one.orders if _named(order)[1] == levels[0] and _is_completed(order)]
    return any(_goes_down(order, levels[1:]) for order in below)


def _too_long(all_: Mapping[str, One], ids: Iterable[str]) -> int:
    """Return how many orders might end after everybody has given up the command that they are for."""
    count = 0
    for id in ids:
        order = all_[id].command if id in all_ else None
        parent = all_.get(order.parent) if order else None
        if order is not None and parent is not None and parent.command is not None:
            count += order.ceiling > max(parent.command.ceiling, parent.command.deadline)
    return count


def _below(command: One) -> Iterator[One]:
    for order in command.orders:
        yield order
        yield from _below(order)


def _lines(one: One, depth: int) -> Iterator[OrderLine]:
    device, name = _named(one)
    outcome = one.outcome
    yield OrderLine(
        depth=depth,
        device=device,
        name=name,
        id=one.id,
        given=as_seconds(one.given),
        took=one.seconds,
        outcome=outcome.status if outcome else "",
        text=outcome.text if outcome else "",
    )
    for order in one.orders:
        yield from _lines(order, depth + 1)


def _named(one: One) -> tuple[str, str]:
    return (one.command.device, one.command.command) if one.command else ("", "")


def _is_completed(one: One) -> bool:
    return one.outcome is not None and one.outcome.status == COMPLETED


def _was_done(one: One) -> bool:
    return any(ack.status == COMPLETED for ack, _ in one.acks)

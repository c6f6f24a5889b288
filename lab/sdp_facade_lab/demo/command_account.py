"""The outcomes of a demo's commands and orders, and their account, which the account of the fault runs makes."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from facade.flows.commands.messages import AckMessage, CommandMessage
from facade.flows.commands.outcomes import ACCEPTED, COMPLETED, FINAL
from facade.flows.commands.past import CommandFamily, One
from facade.kernel.bus.port import Record
from facade.kernel.clock import as_seconds
from sdp_facade_lab.command_account import CallLine, FoundCommands, account
from sdp_facade_lab.demo.plan import Given
from sdp_facade_lab.heap_account import BalanceLine


class CommandLine(Given, kw_only=True):
    """One command in the report of a demo: as TM gave and saw it, and what became of it."""

    begun: float | None
    """When the controller accepted it, after the facade had issued it [s]; None: never."""
    executions: int
    """How often the controller has begun it."""
    outcome: str
    """The first final acknowledgement; empty: none, or it was refused."""
    ended: float | None
    """When that was written [Unix s]."""
    text: str


def timeline(given: Iterable[Given], found: FoundCommands) -> list[CommandLine]:
    """Return what became of each command of TM, in the order of the calls."""
    acks = defaultdict[str, list[AckMessage]](list)
    for ack in found.acks:
        acks[ack.id].append(ack)
    issued = {command.id: command.issued for command in found.commands}
    executions = Counter(line.id for line in found.executions)
    lines = []
    for one in sorted(given, key=lambda one: one.called):
        final = next((ack for ack in acks[one.id] if ack.status in FINAL), None)
        accepted = next((ack for ack in acks[one.id] if ack.status == ACCEPTED), None)
        refused = one.refusals[-1] if one.refusals and not one.id else ""
        lines.append(
            CommandLine(
                **msgspec.structs.asdict(one),
                begun=as_seconds(accepted.time - issued[one.id]) if accepted and one.id in issued else None,
                executions=executions[one.id],
                outcome=final.status if final else "",
                ended=as_seconds(final.time) if final else None,
                text=final.text if final else refused,
            )
        )
    return lines


def calls(given: Iterable[Given]) -> list[CallLine]:
    """Return the commands of TM as the account of the fault runs has them."""
    return [
        CallLine(
            device=one.device,
            command=one.name,
            called=one.called,
            seconds=one.took or 0.0,
            answer="given" if one.id else "refused",
            id=one.id,
            text="" if one.id else "; ".join(one.refusals[-1:]),
            transaction_id=one.transaction_id,
        )
        for one in given
    ]


def _ordered(order: CommandMessage) -> CallLine:
    """Return an order as a call of its controller."""
    called = as_seconds(order.issued)
    return CallLine(device=order.device, command=order.command, called=called, seconds=0.0, answer="given", id=order.id)


def unfinished(given: Sequence[Given], ends: Mapping[str, str]) -> list[str]:
    """Return the devices whose observation has not come to its end; `ends` has the last command of each."""
    wrong = []
    for device, end in sorted(ends.items()):
        last = next((one for one in reversed(given) if one.device == device), None)
        if last is None or last.name != end or last.reached is None:
            wrong.append(f"{device}: expected the observation to get to its end, got to {last and last.name}")
    return wrong


def balance(found: FoundCommands, *, orders: bool) -> tuple[list[BalanceLine], list[str]]:
    """Return the account of TM's commands by device, or of orders by kind of device, and a text for each fault."""
    lines: list[BalanceLine] = []
    wrong: list[str] = []
    named = [one.device for one in found.commands if bool(one.parent) == orders]
    parts = defaultdict[str, set[str]](set)
    for device in named if orders else (*named, *(one.device for one in found.calls)):
        parts[device.split("/")[1] if orders else device].add(device)
    for where, devices in sorted(parts.items()):
        part = _part(found, devices, orders=orders)
        made = account(part)
        sent = made.tallies["commands"].sent
        on_bus = len({command.id for command in part.commands})
        lines += [
            BalanceLine(where, "given, on the topic commands", sent, on_bus),
            BalanceLine(where, "with an outcome on command-acks", sent, made.tallies["commands"].found),
            BalanceLine(where, "lost, doubled, late, or told differently", 0, len(made.wrong)),
        ]
        wrong += [f"{where}: {text}" for text in made.wrong]
        wrong += [f"{where}: {one.command}: was refused: {one.text}" for one in part.calls if one.answer == "refused"]
    return lines, wrong


def _part(found: FoundCommands, devices: set[str], *, orders: bool) -> FoundCommands:
    """Return the part about TM's commands to some devices, or about the orders to them."""
    commands = [one for one in found.commands if one.device in devices and bool(one.parent) == orders]
    ids = {one.id for one in commands}
    other = {one.id for one in found.commands} - ids
    return FoundCommands(
        calls=[*map(_ordered, commands)] if orders else [one for one in found.calls if one.device in devices],
        commands=commands,
        acks=[one for one in found.acks if one.device in devices and one.id not in other],
        shown={id: status for id, status in found.shown.items() if id not in other},
        executions=[one for one in found.executions if one.device in devices and one.id not in other],
    )


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


def compare_orders(
    commands: Sequence[One], found: FoundCommands, subarrays: int
) -> tuple[list[BalanceLine], list[str]]:
    """Return the account of the orders below TM's commands, and all that is wrong with them."""
    below = {one.id: one for command in commands for one in (command, *_below(command))}
    orders = {one.id for one in found.commands if one.parent}
    lines, wrong = balance(found, orders=True)
    further = [
        BalanceLine("orders", "below a command of TM", len(orders), len(orders & below.keys())),
        BalanceLine("orders", "with more time than what they are for", 0, _too_long(below, orders)),
    ]
    return [*_followed(commands, subarrays), *further, *lines], wrong


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

"""The account of the orders of a demo: which ones TM's commands led to, and what became of them. No I/O."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from facade.bus.port import Record
from facade.flows.commands.outcomes import COMPLETED
from facade.flows.commands.past import Family, One
from proving.demo.account import Line
from proving.demo.command_account import DeviceCommands

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
        family = Family(id)
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


def compare_orders(commands: Sequence[One], devices: Mapping[str, DeviceCommands], subarrays: int) -> list[Line]:
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
    lines = [Line(kind, what, wanted, figures[kind, what]) for (kind, what), wanted in expected.items()]
    return [*_followed(commands, subarrays), *lines]


def _followed(commands: Sequence[One], subarrays: int) -> Iterator[Line]:
    """Return whether each command of SDP came to all subarrays, and each Configure down to a worker."""
    switched = defaultdict[tuple[str, str], set[str]](set)
    for one in commands:
        device, name = _named(one)
        if one.orders and name not in DOWN:
            switched[device.split("/")[1], name] |= {_named(order)[0] for order in one.orders if _was_done(order)}
    for (kind, name), followed in switched.items():
        yield Line(kind, f"subarrays that followed {name}", subarrays, len(followed))
    for name, levels in DOWN.items():
        done = [one for one in commands if _named(one)[1] == name and _is_completed(one)]
        yield Line(
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
        given=one.given / 1e6,
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
    """Return whether it was done, be it after its time: who is there already is not ordered again."""
    return any(ack.status == COMPLETED for ack, _ in one.acks)

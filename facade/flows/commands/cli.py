"""`sdp-facade commands`: past commands and their outcomes, read from the bus."""

import json
from collections.abc import Callable, Iterable
from typing import Annotated, Any

import msgspec
import typer
from rich.markup import escape
from rich.progress import track
from rich.text import Text
from rich.tree import Tree

from facade.flows.commands.messages import ACKS, COMMANDS, HELD_COMMANDS, REFUSALS, given_by, issued
from facade.flows.commands.past import OPEN, OUTCOMES, CommandFamily, One, Past, chosen, nested, row
from facade.kernel.bus.dead_letters import TOPIC as DEAD
from facade.kernel.bus.dead_letters import original
from facade.kernel.bus.kafka.admin import find_range
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.kafka.read_range import read_range
from facade.kernel.bus.port import Record
from facade.kernel.clock import MINUTE, NEVER, SystemClock, Time, as_duration, as_seconds, as_time
from facade.kernel.config import load_settings
from facade.kernel.console import ERR, OUT, SINCE, AsJson, Since, moment, shortened, wide
from facade.kernel.errors import BusError, ConfigError
from facade.kernel.icd.load import load
from facade.kernel.icd.model import Icd
from facade.kernel.numbers import LARGEST
from facade.kernel.printable import printable
from facade.sdp.durations import parse_duration
from facade.sdp.words import duration_in_words

_CLASS = "SdpSubarray"
_AWAY = MINUTE
"""Most difference between the clocks of broker and device server."""
_MANY = 20_000
"""Records that take some two seconds to read; from here on progress is shown."""
_STYLES = {"COMPLETED": "green", "OPEN": "yellow", "ABORTED": "yellow"}


def list_commands(
    since: Since = SINCE,
    subarray: Annotated[list[int] | None, typer.Option(min=1, help="Only of this subarray; repeatable.")] = None,
    device: Annotated[list[str] | None, typer.Option(help="Only of this device; repeatable.")] = None,
    command: Annotated[list[str] | None, typer.Option(help="Only of this name, such as Configure; repeatable.")] = None,
    outcome: Annotated[
        list[str] | None, typer.Option(help=f"Only with this outcome; repeatable. One of {', '.join(OUTCOMES)}.")
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, help="Number of commands to print, the newest ones; all are counted.")
    ] = 50,
    as_json: AsJson = False,
) -> None:
    """List commands and their outcomes, the newest at the end. Those that a device refused are among them.

    They are read from the topics, so it goes back as far as these keep them, whatever a device server remembers. The
    orders that a command led to are below it, indented.

    Example: sdp-facade commands list --since 1h --subarray 1 --outcome FAILED
    """
    clock, icd = SystemClock(), load()
    if unknown := [one for one in outcome or () if one not in OUTCOMES]:
        raise ConfigError(f"--outcome: expected one of {', '.join(OUTCOMES)}, got {unknown[0]!r:.100}")
    names = {one.name for executor in icd.commanded.values() for one in executor.commands}
    for strange in sorted(set(command or ()) - names):  # commands of an earlier interface may be on the topics
        text = f"--command: the interface has no {printable(strange)[:100]!r}, but {', '.join(sorted(names))}"
        ERR.print(text, style="yellow", markup=False)
    length = parse_duration(since, "--since")
    begin = clock.now_us() - as_duration(length)
    past = Past(begin)
    connection = Connection(load_settings(), clock=clock)
    _read(connection, HELD_COMMANDS, begin - _AWAY, past.add_held)
    _read(connection, COMMANDS, begin - _AWAY, past.add_command)
    _read(connection, ACKS, begin - _AWAY, past.add_ack)
    _read(connection, REFUSALS, begin - _AWAY, past.add_refusal)
    template = icd.classes[_CLASS].device
    devices = [*(one.lower() for one in device or ()), *(template.format(subarray=one) for one in subarray or ())]
    rows = [row(one) for one in chosen(past.commands(), devices=devices, names=command or (), outcomes=outcome or ())]
    if as_json:
        shown = {"commands": rows[-limit:], "counts": _counts(rows), "unreadable": past.unreadable}
        typer.echo(json.dumps(shown, indent=2))
        return
    for depth, one in nested(rows[-limit:]):
        _print_row(one, depth, past.arguments.get(one["id"], ""))
    _print_end(rows, limit, past, since)
    kept = icd.topics[COMMANDS].retention or length
    if length > kept:
        ERR.print(f"the topic keeps commands for {duration_in_words(kept)}; older ones are not there any more")


def show(
    id: Annotated[str, typer.Argument(help="Id of the command, as `commands list` and the call that sent it say it.")],
    as_json: AsJson = False,
) -> None:
    """Show one command: its argument, each acknowledgement with its time and its sender, and its orders as a tree.

    Example: sdp-facade commands show 1795167600.123456_000000000042_Configure
    """
    clock, icd = SystemClock(), load()
    if not 0 < int(issued(id)) <= LARGEST:
        raise ConfigError(f"ID: expected an id such as 1795167600.123456_000000000042_Configure, got {id!r:.200}")
    connection = Connection(load_settings(), clock=clock)
    one = _find(connection, id, issued(id) - _AWAY)
    if one.command is None:  # its id may be ahead, as issue times do not go back when a clock is set back
        one = _find(connection, id, NEVER)
    if one.command is None and not one.acks:
        raise BusError(f"no command {id!r:.200} on the bus{_how_long(icd)}; see `sdp-facade commands list`")
    if as_json:
        typer.echo(json.dumps(_document(one), indent=2))
    else:
        _print_one(one, icd)


def _find(connection: Connection, id: str, since: Time) -> One:
    family = CommandFamily(id)
    _read(connection, HELD_COMMANDS, since, family.add_held)
    _read(connection, COMMANDS, since, family.add_command)
    family.gather()
    _read(connection, ACKS, since, family.add_ack)
    return family.first


def _read(connection: Connection, topic: str, since: Time, take: Callable[[Record], None]) -> None:
    """Read what stands on a topic since a time, without acknowledgements that device servers set aside."""
    since = max(since, Time(1000))
    letters = read_range(connection, DEAD, find_range(connection, DEAD, since=since)) if topic == ACKS else ()
    aside = {(one.partition, one.offset) for one in map(original, letters) if one.topic == topic}
    ranges = find_range(connection, topic, since=since)
    count = sum(end - begin for begin, end in ranges.values())
    records: Iterable[Record] = read_range(connection, topic, ranges)
    for record in track(
        records, f"reading {topic}", count, console=ERR, transient=True, disable=count < _MANY, update_period=0.5
    ):
        if (record.partition, record.offset) not in aside:
            take(record)


def _counts(rows: list[dict[str, Any]]) -> dict[str, int]:
    return {name: number for name in OUTCOMES if (number := sum(one["outcome"] == name for one in rows))}


def _print_row(one: dict[str, Any], depth: int, argument: str) -> None:
    took = "" if one["seconds"] is None else f"{one['seconds']:.2f} s"
    style = _STYLES.get(one["outcome"], "bold red")
    device = one["device"].partition("/")[2]
    called = "  " * depth + ("└ " if depth else "") + printable(one["command"])
    head = f"{moment(as_time(one['issued']))}  {escape(printable(device)):<12} {escape(called):<20}"
    OUT.print(f"{head} [{style}]{one['outcome']:<11}[/{style}] {took:>9}")
    who = given_by(one["operator"], one["client"])
    by = f"by {who}" if who else ""
    said = ": ".join(
        filter(None, (" ".join(filter(None, (one["id"], by))), one["outcome"] != "COMPLETED" and one["text"]))
    )
    OUT.print(f"    [dim]{escape(printable(said))}[/dim]")
    if argument:
        OUT.print(f"[dim]{escape(shortened(f'    {printable(argument)}', wide()))}[/dim]")


def _print_end(rows: list[dict[str, Any]], limit: int, past: Past, since: str) -> None:
    counts = ", ".join(f"{number} {name}" for name, number in _counts(rows).items())
    older = f"; the newest {limit} are shown, --limit shows more" if len(rows) > limit else ""
    ERR.print(f"{len(rows)} commands of the last {since}, times in UTC" + (f": {counts}" if counts else "") + older)
    if past.unreadable:
        ERR.print(f"{past.unreadable} records of these topics could not be read; see `sdp-facade dead-letters list`")


def _document(one: One) -> dict[str, Any]:
    acks = [{**msgspec.to_builtins(ack), "appended": appended} for ack, appended in one.acks]
    return {
        "id": one.id,
        "outcome": _word(one),
        "given": one.given,
        "seconds": one.seconds,
        "trace": one.trace,
        "held": one.held,
        "command": None if one.command is None else msgspec.to_builtins(one.command),
        "acknowledgements": acks,
        "orders": [_document(order) for order in one.orders],
    }


def _word(one: One) -> str:
    return one.outcome.status if one.outcome else OPEN


def _print_one(one: One, icd: Icd) -> None:
    command, outcome, word = one.command, one.outcome, _word(one)
    style = _STYLES.get(word, "bold red")
    OUT.print(f"[bold]{escape(printable(one.id))}[/bold]  [{style}]{word}[/{style}]")
    if command is None:
        OUT.print(f"its own record is not on the topic {COMMANDS}{_how_long(icd)}")
    else:
        traced = f", trace {one.trace}" if one.trace else ""
        of = f"{command.device} {command.command}, transaction {command.transaction_id}{traced}"
        OUT.print(escape(printable(of)))
        if command.parent:
            OUT.print(escape(printable(f"an order of {command.parent}")))
        who = given_by(command.operator, command.client)
        by = f", given by {who}" if who else ""
        if command.approver:
            by += f", approved by {given_by(command.approver, command.approver_client)}"
        OUT.print(f"{moment(one.given)}  issued by {escape(printable(command.origin + by))}")
        if one.held:
            OUT.print(f"{moment(command.not_after)}  latest time for the approval by a second person")
        else:
            OUT.print(f"{moment(command.not_after)}  latest time to begin")
            OUT.print(f"{moment(command.deadline)}  deadline, unless an acknowledgement moves it")
    ended = False
    for ack, _ in one.acks:
        late = "  [dim]after the outcome, so it changes nothing[/dim]" if ended else ""
        progress = "" if ack.progress is None else f" {ack.progress} %"
        remaining = "" if ack.remaining is None else f", {ack.remaining:g} s left"
        said = f": {ack.text}" if ack.text else ""
        who = escape(printable(f"{ack.status}{progress}{remaining} by {ack.origin}{said}"))
        OUT.print(f"{moment(ack.time)}  {as_seconds(ack.time - one.given):+.3f} s  {who}{late}")
        ended = ended or ack is outcome
    _print_orders(one)
    if outcome is not None and outcome.result is not None:
        OUT.print("result:", escape(json.dumps(outcome.result, indent=2)))
    if command is not None:
        OUT.print("argument:", "none" if command.argument is None else escape(json.dumps(command.argument, indent=2)))


def _print_orders(one: One) -> None:
    def add(tree: Tree, one: One) -> None:
        for order in one.orders:
            add(tree.add(_order(order)), order)

    if one.orders:
        root = Tree("orders, each with its time from the order to the outcome:", guide_style="dim")
        add(root, one)
        wide().print(root)


def _order(one: One) -> Text:
    if (command := one.command) is None:  # of an order it is there: by it the order is known
        return Text(printable(one.id))
    word = _word(one)
    style = _STYLES.get(word, "bold red")
    took = "" if one.seconds is None else f" after {one.seconds:.2f} s"
    text = f": {one.outcome.text}" if one.outcome and one.outcome.text else ""
    by = f" by {one.outcome.origin}" if one.outcome else ""
    called = escape(printable(f"{command.device} {command.command}"))
    head = f"{moment(one.given)}  {called} [{style}]{word}[/{style}]{took}"
    label = f"{head}{escape(printable(by + text))}\n[dim]{escape(printable(one.id))}[/dim]"
    return Text.from_markup(label, emoji=False)


def _how_long(icd: Icd) -> str:
    kept = icd.topics[COMMANDS].retention
    return f", which keeps commands for {duration_in_words(kept)}" if kept else ""

"""The sub-command ``command`` of ``sdp-facade``: gives a command to a device, and waits for its outcome."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from facade.flows.commands.arguments import Arguments
from facade.kernel.cli.tango_host import TangoHost, device_name, require_tango_database
from facade.kernel.clock import Clock, SystemClock
from facade.kernel.console import ERR, OUT
from facade.kernel.errors import ArgumentError, ConfigError
from facade.kernel.icd.load import load
from facade.kernel.icd.model import CommandDefinition, DeviceClass, Icd
from facade.kernel.instances import number_of
from facade.kernel.printable import printable

ADMIN_MODE = "adminMode"
APPROVE, WITHDRAW = "ApproveCommand", "WithdrawCommand"
_LOOK_AGAIN = 0.2
"""Time between two checks of a command [s]."""
_TOLD_EACH = 2.0
"""Time between two lines about a running command [s]."""


def command(
    device: Annotated[
        str,
        typer.Argument(
            callback=device_name,
            help="A subarray's number, such as 1, or a device, such as subarray/01 or mid-sdp/control/0.",
        ),
    ],
    name: Annotated[
        str,
        typer.Argument(help="A command of the device, such as Abort, or ApproveCommand, WithdrawCommand or adminMode."),
    ],
    argument: Annotated[
        str,
        typer.Argument(
            help="File with the JSON argument, - for standard input; of ApproveCommand and WithdrawCommand, the id;"
            " of adminMode, the mode."
        ),
    ] = "",
    operator: Annotated[
        str, typer.Option(metavar="NAME", help="Who gives the command: kept in its record, and not checked.")
    ] = "",
    wait: Annotated[bool, typer.Option(help="Wait for the outcome.")] = True,
    tango_host: TangoHost = "",
) -> None:
    """Give a command to a device, or set its adminMode.

    The argument is checked by the schemas of the interface before anything is sent. The exit code is 0 if the outcome
    is COMPLETED, or ABORTED after WithdrawCommand, else 1. An argument: `command 1 Configure scan.json`. A mode:
    `command control/0 adminMode OFFLINE`.

    Example: sdp-facade command 1 Abort
    """
    icd = load()
    full, device_class = _find(icd, device)
    if name == ADMIN_MODE:
        value = _mode(icd, device_class, argument)
    elif name in (APPROVE, WITHDRAW):
        if not (argument and operator):
            raise ConfigError(
                f"expected the id of a command, and --operator, got {argument!r:.100} and {operator!r:.100}"
            )
        text: str | None = json.dumps({"id": argument, "operator": operator})
    else:
        text = _checked(icd, _command(device_class, name), argument)
    require_tango_database(tango_host)
    from sdp_facade_clients.ask import AskedDevice  # imports Tango, which takes a second

    server = AskedDevice(tango_host, full, device_class.instance)
    if name == ADMIN_MODE:
        if operator:
            server.set_mode(argument, operator)
        else:
            server.write(ADMIN_MODE, value)
        OUT.print(f"{full}: {ADMIN_MODE} is {argument}")
        return
    in_name = operator and name not in (APPROVE, WITHDRAW)
    id = server.give(name, text, operator) if in_name else server.command(name, text)[1][0]
    OUT.print(id)
    wanted = "ABORTED" if name == WITHDRAW else "COMPLETED"
    if wait and _outcome(lambda: json.loads(server.command("GetCommand", id)), SystemClock()) != wanted:
        raise typer.Exit(1)


def _find(icd: Icd, device: str) -> tuple[str, DeviceClass]:
    """Return the full name of a device with commands, and its class."""
    commanded = [one for one in icd.classes.values() if one.commands]
    if device.isdecimal():
        one = next(one for one in commanded if one.family)
        return one.device.format(**{one.family: int(device)}), one
    domain = commanded[0].device.partition("/")[0]
    full = (device if device.count("/") > 1 else f"{domain}/{device}").lower()
    for one in commanded:
        if full == one.device or number_of(one, full) is not None:
            return full, one
    known = ", ".join(one.device for one in commanded)
    raise ConfigError(
        f"DEVICE: expected the number of a subarray, or a device that takes commands ({known}), got {device}"
    )


def _command(device_class: DeviceClass, name: str) -> CommandDefinition:
    known = {one.name: one for one in device_class.commands}
    if name not in known:
        raise ConfigError(
            f"NAME: expected one of {', '.join([*known, APPROVE, WITHDRAW, ADMIN_MODE])}, got {name!r:.100}"
        )
    return known[name]


def _mode(icd: Icd, device_class: DeviceClass, label: str) -> int:
    entry = next((one for one in device_class.attributes if one.name == ADMIN_MODE), None)
    labels = () if entry is None or entry.enum is None else icd.enums[entry.enum]
    if label not in labels:
        raise ConfigError(f"ARGUMENT: expected one of {', '.join(labels)}, got {label!r:.100}")
    return labels.index(label)


def _checked(icd: Icd, entry: CommandDefinition, argument: str) -> str | None:
    if entry.argument is None:
        if argument:
            raise ConfigError(f"ARGUMENT: expected none, as {entry.name} takes none, got {argument!r:.100}")
        return None
    if not argument:
        raise ConfigError(f"ARGUMENT: expected a file with the JSON argument of {entry.name}, or -, got nothing")
    try:
        text = sys.stdin.read() if argument == "-" else Path(argument).read_text()
        Arguments(icd).check(entry.argument, text)
    except (ArgumentError, UnicodeDecodeError) as error:
        raise ConfigError(f"{'standard input' if argument == '-' else argument}: {error}; nothing was sent") from error
    return text


def _outcome(look: Callable[[], dict[str, Any]], clock: Clock) -> str:
    """Wait for the outcome of a command, and return it; print progress meanwhile."""
    told, told_at = "", clock.monotonic()
    while True:
        seen = look()
        status = str(seen["status"])
        progress = "" if seen.get("progress") is None else f" {seen['progress']} %"
        text = printable(str(seen.get("text") or ""))
        line = f"{status}{progress}{f': {text}' if text else ''}"
        if seen["finished_time"] is not None:
            OUT.print(escape(line))
            return status
        if line != told or clock.monotonic() - told_at >= _TOLD_EACH:
            ERR.print(f"[dim]{escape(line)}[/dim]")
            told, told_at = line, clock.monotonic()
        clock.sleep(_LOOK_AGAIN)

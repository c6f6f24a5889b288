"""Whether commands are there with their types; what they do is shown by `clients.conformance.walk`."""

from clients.conformance.case import Check, CommandOf, QueryOf, demand
from clients.conformance.system import System

RESULT = "DevVarLongStringArray"
"""[ResultCode], [command id]: what SKA's long-running commands return."""


def exists(system: System, of: CommandOf | QueryOf) -> str:
    """Find a command of the device."""
    return str(system.command(of.device, of.entry.name).cmd_name)


def _types(system: System, of: CommandOf) -> str:
    found = system.command(of.device, of.entry.name)
    argument = "DevVoid" if of.entry.argument is None else "DevString"
    return demand(f"{argument} -> {RESULT}", f"{found.in_type} -> {found.out_type}")


COMMAND_CHECKS: tuple[Check[CommandOf], ...] = (
    Check(aspect="exists", claims=("Command.name", "DeviceClass.commands"), judge=exists),
    Check(aspect="types", claims=("Command.argument",), judge=_types),
)
"""What Tango tells of a command that is not given."""

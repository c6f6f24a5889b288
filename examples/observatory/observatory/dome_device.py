"""The Tango class of the dome: it makes each command of the interface a command of the device."""

from collections.abc import Callable
from typing import Any

import tango
from tango.server import command

from devices.kernel.base import FacadeDevice
from devices.kernel.queries import as_tango, refusal
from facade.kernel.icd.model import CommandDefinition, DeviceClass
from observatory.dome import Dome

_QUEUED = 2
"""The bus has the command; attributes show its outcome."""


class DomeDevice(FacadeDevice):
    """A device with commands. No call holds the device monitor while it waits for the bus."""

    @classmethod
    def tango_commands(cls, entry: DeviceClass) -> dict[str, Any]:
        """Make the Tango commands, by name."""
        return {one.name: _tango_command(one) for one in entry.commands}

    def give(self, entry: CommandDefinition) -> tuple[list[int], list[str]]:
        """Write a command to the bus; return the code QUEUED and its id."""
        dome = None if self.service is None else self.service.find(Dome)
        if dome is None:
            raise refusal("the device server is still starting; try again", entry.name)
        with tango.AutoTangoAllowThreads(self), as_tango(entry.name):
            return [_QUEUED], [dome.give(entry)]


def _tango_command(entry: CommandDefinition) -> Callable[..., Any]:
    def call(self: DomeDevice) -> tuple[list[int], list[str]]:
        return self.give(entry)

    call.__name__, call.__doc__ = entry.name, entry.description
    return command(call, dtype_out="DevVarLongStringArray", doc_out="[2], [id of the command]")

"""Asks devices by Tango, with errors that say what to do."""

import json
from typing import Any

import tango

from clients.events import DeviceEvent, as_event
from facade.errors import CommandRefused, InfraError

_REFUSALS = ("API_CommandNotAllowed", "API_CommandFailed", "API_CommandTimedOut")
"""Tango's words with which devices of ours say no."""


def in_name_of(operator: str, command: str, argument: str | None) -> str:
    """Return the argument of GiveCommand."""
    request = {"command": command, "operator": operator}
    return json.dumps(request if argument is None else request | {"argument": argument})


class AskedDevice:
    """One device of a deployment.

    Parameters
    ----------
    server
        The instance that serves it, for what an operator is to start.
    """

    def __init__(self, tango_host: str, name: str, server: str) -> None:
        self._name, self._server = name, server
        try:
            self._proxy = tango.DeviceProxy(f"tango://{tango_host}/{name}")
        except tango.DevFailed as failed:
            raise self._away(failed) from failed

    def command(self, name: str, argument: Any = None) -> Any:
        """Call a command.

        Raises
        ------
        CommandRefused
            The device says no, and why.
        InfraError
            It does not answer.
        """
        try:
            return self._proxy.command_inout(name, argument)
        except tango.DevFailed as failed:
            error = failed.args[0]
            if error.reason in _REFUSALS:
                raise CommandRefused(error.reason, error.desc, error.origin) from failed
            raise self._away(failed) from failed

    def give(self, name: str, argument: str | None, operator: str) -> str:
        """Give a command in the name of an operator, and return its id; errors as of `command`."""
        _, (id,) = self.command("GiveCommand", in_name_of(operator, name, argument))
        return str(id)

    def write(self, attribute: str, value: Any) -> None:
        """Write an attribute; errors as of `command`."""
        try:
            self._proxy.write_attribute(attribute, value)
        except tango.DevFailed as failed:
            error = failed.args[0]
            if error.reason in _REFUSALS:
                raise CommandRefused(error.reason, error.desc, error.origin) from failed
            raise self._away(failed) from failed

    def read(self, *attributes: str) -> dict[str, Any]:
        """Return the values of attributes; None for one that has no valid value.

        Raises
        ------
        InfraError
            The device does not answer.
        """
        try:
            found = self._proxy.read_attributes(list(attributes), extract_as=tango.ExtractAs.List)
        except tango.DevFailed as failed:
            raise self._away(failed) from failed
        return {one.name: None if one.has_failed else one.value for one in found}

    def event(self, attribute: str) -> DeviceEvent:
        """Return the value of an attribute with its quality and time; errors as of `read`."""
        try:
            found = self._proxy.read_attribute(attribute)
        except tango.DevFailed as failed:
            raise self._away(failed) from failed
        return as_event(found, found.time.totime())

    def _away(self, failed: tango.DevFailed) -> InfraError:
        why = failed.args[0].desc.partition("\n")[0]
        return InfraError(
            f"{self._name} does not answer: {why}; start its device server: sdp-facade serve {self._server}"
        )

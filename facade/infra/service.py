"""What `facade.infra.local` needs to know about a service, and what all services share."""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from facade.errors import InfraError
from facade.infra.processes import Process

_PORT_IS_TAKEN: Final = ("Address already in use", "AddressAlreadyInUse", "Failed to bind")


class PortTakenError(InfraError):
    """Somebody else took the port between the choice and the start."""


class Service(Protocol):
    """One service; the implementations hold settings only, the state is kept by the caller."""

    def launch(self, port: int, started: Callable[[Process], None]) -> None:
        """Install what is missing and start the processes, telling of each one as soon as it exists."""

    def await_ready(self, port: int, processes: Sequence[Process]) -> None:
        """Return when the service answers; raise `PortTakenError` or `InfraError` when it never will."""

    def clean_up(self) -> None:
        """Remove what a stopped service leaves outside its folder."""


def check_alive(process: Process) -> None:
    """Raise what explains the death of a process that should be starting.

    Raises
    ------
    PortTakenError
        It ended because its port is in use.
    InfraError
        It ended for another reason; the message holds the end of its log.
    """
    if process.is_alive:
        return
    end, said = process.tail(), process.log.read_text(errors="replace")
    if any(text in said for text in _PORT_IS_TAKEN):
        raise PortTakenError(f"{process.name} cannot listen: its port is in use; the end of {process.log}:\n{end}")
    raise InfraError(f"{process.name} ended while it started; the end of {process.log}:\n{end}")

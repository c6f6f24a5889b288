"""Controllers of SDP: handlers by command name, and the call that each handler gets.

A handler does what the command asks, reports the new state, and returns. `facade.sdk.controller.command_state`
has the rules that every controller must obey; a handler need not know them.
"""

from collections.abc import Callable, Sequence
from typing import Any

from facade.kernel.errors import ConfigError
from facade.kernel.icd.model import CommandDefinition, Icd
from facade.sdk.controller.call import Call, Device


class Rejected(Exception):
    """A handler raises it to refuse a command before it has changed anything. The text gives the reason."""


Handler = Callable[[Call], Any]
OnInterrupted = Callable[[Device, str], None]


class Controller:
    """The handlers of one controller.

    Parameters
    ----------
    component
        Name in heartbeats and acknowledgements. It stays the same after a restart, and is unique.
    *classes
        Device classes and executors of the ICD whose commands it executes.
    group
        Controllers of one group share the devices, and take over from each other. By default the controller
        is the only one of its group.
    orders
        Device classes and executors of the ICD to which its handlers give orders.

    Examples
    --------
    >>> controller = Controller("my-subarrays", "SdpSubarray")
    >>> @controller.command("Configure")
    ... def configure(call: Call) -> None:
    ...     call.report(obsState="CONFIGURING")
    ...     call.wait(1.0)  # in the place of real work
    ...     call.report(scanType=call.argument["scan_type"], obsState="READY")
    >>> run(controller)
    """

    def __init__(self, component: str, *classes: str, group: str | None = None, orders: Sequence[str] = ()) -> None:
        self.component = component
        self.classes = classes
        self.orders = tuple(orders)
        self.group = group or component
        self.handlers: dict[str, Handler] = {}
        self.on_interrupted: OnInterrupted = lambda device, command: None

    def command(self, *names: str) -> Callable[[Handler], Handler]:
        """Register a handler for commands of these names.

        Commands of one device run one after the other, those of different devices at the same time. The end of
        the handler decides what becomes of the command:

        - It returns: COMPLETED. The value is the result: anything that JSON can hold, or None.
        - It raises `Rejected`: REJECTED with its text, or FAILED after progress was reported.
        - It lets `Cancelled` through: ABORTED, if another command has ended it or its giver has taken it back. If
          the controller ends, a repeatable command is left to its next start, and any other is FAILED.
        - It raises any other exception: FAILED, with the name and the text of the exception.

        A repeatable command whose partition has moved meanwhile has no outcome here: the controller that has the
        partition now begins it again. After FAILED, the device is reported to be in FAULT with the text in
        `errorMessages`, unless the handler has reported a stable obsState; after REJECTED, only if obsState is
        transitional. Orders without an outcome end as ABORTED with the command, unless it is COMPLETED.

        Raises
        ------
        ConfigError
            A command has two handlers.
        """

        def register(handler: Handler) -> Handler:
            for name in names:
                if name in self.handlers:
                    raise ConfigError(f"controller {self.component}: {name} has two handlers")
                self.handlers[name] = handler
            return handler

        return register

    def interrupted(self, handler: OnInterrupted) -> OnInterrupted:
        """Register a function for commands that a crash interrupted and that are not repeated.

        Such a command has failed: it must not be repeated, or it is too late for that. The function gets the
        device and the name of the command. It usually reports a fault.
        """
        self.on_interrupted = handler
        return handler

    def commands(self, icd: Icd) -> dict[str, dict[str, CommandDefinition]]:
        """Return the ICD's commands by device class and name.

        Raises
        ------
        ConfigError
            The ICD lacks a class, or a command that a handler is for.
        """
        all_ = icd.commanded
        if unknown := {*self.classes, *self.orders} - set(all_):
            raise ConfigError(
                f"controller {self.component}: expected device classes or executors from {', '.join(all_)},"
                f" got {', '.join(sorted(unknown))}"
            )
        found = {name: {command.name: command for command in all_[name].commands} for name in self.classes}
        known = {name for commands in found.values() for name in commands}
        if strange := set(self.handlers) - known:
            raise ConfigError(
                f"controller {self.component}: {', '.join(sorted(strange))}: expected commands of"
                f" {', '.join(self.classes)}: {', '.join(sorted(known))}"
            )
        return found

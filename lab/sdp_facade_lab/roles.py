"""What the processes of a bench or a fault run do: ``python -m sdp_facade_lab.roles MODULE:FUNCTION RESULT TASK``.

The module of a role is loaded only by a process that plays it, so that a worker has in memory what
a worker needs and nothing else.
"""

import logging
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from facade.infra.processes import Process
from facade.kernel.clock import Clock, SystemClock
from facade.kernel.config import Settings, load_settings
from facade.kernel.runtime.stopping import end_process
from facade.sdp.files import write_whole

Play = Callable[..., Any]
"""A function that plays a role: it gets a `RoleContext` and the task, and returns the result, or None."""


class RoleProcess(Process):
    """A process that plays a role; files beside its log say how far it is."""

    @property
    def result(self) -> Path:
        return self.log.with_suffix(".json")

    @property
    def address(self) -> str:
        return self.result.with_suffix(".address").read_text()

    @property
    def is_ready(self) -> bool:
        return self.result.with_suffix(".ready").exists()

    def release(self) -> None:
        self.result.with_suffix(".go").touch()

    def call_off(self) -> None:
        self.result.with_suffix(".stop").touch()


def command_line(role: Play, log: Path, task: dict[str, Any]) -> list[str]:
    """Return how a role is started, after what an earlier one left beside the log is removed."""
    for left in (".json", ".ready", ".stop", ".go", ".address"):
        log.with_suffix(left).unlink(missing_ok=True)
    task_text = msgspec.json.encode(task).decode()
    where = f"{role.__module__}:{role.__name__}"
    return [sys.executable, "-m", "sdp_facade_lab.roles", where, str(log.with_suffix(".json")), task_text]


@dataclass(frozen=True, slots=True)
class RoleContext:
    """What a role has at hand, in its own process."""

    settings: Settings
    clock: Clock
    result: Path

    @property
    def tango_host(self) -> str:
        return os.environ["TANGO_HOST"]

    def deliver(self, result: Any) -> None:
        """Hand in the result, whole or not at all."""
        write_whole(self.result, msgspec.json.encode(result))

    def announce(self, address: str = "") -> None:
        """Say that this role is ready, and where the device is that it serves, if any."""
        self.result.with_suffix(".address").write_text(address)
        self.result.with_suffix(".ready").touch()

    def retract(self) -> None:
        self.result.with_suffix(".ready").unlink(missing_ok=True)

    @property
    def called_off(self) -> bool:
        """Return whether the role is to come to its end."""
        return self.result.with_suffix(".stop").exists()

    @property
    def released(self) -> bool:
        """Return whether a role that waits at a gate may start."""
        return self.result.with_suffix(".go").exists()


def main() -> None:
    name, result, task = sys.argv[1:]
    logging.basicConfig(level=os.environ.get("SDP_LOG_LEVEL", "WARNING"), stream=sys.stderr)
    module, _, function = name.partition(":")
    play: Play = getattr(import_module(module), function)
    context = RoleContext(load_settings(), SystemClock(), Path(result))
    found = play(context, **msgspec.json.decode(task))
    if found is not None:
        context.deliver(found)
    end_process()


if __name__ == "__main__":
    main()

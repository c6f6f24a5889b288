"""What the processes of a bench do: ``python -m proving.bench.roles ROLE RESULT TASK``.

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

from facade.clock import Clock, SystemClock
from facade.config import Settings, load_settings

ROLES = {
    "fill": "proving.bench.load:fill",
    "worker": "proving.bench.throughput_roles:worker",
    "bare": "proving.bench.throughput_roles:bare",
    "memo": "proving.bench.peer_roles:memo",
    "sink": "proving.bench.peer_roles:sink",
    "asyncio": "proving.bench.peer_roles:one_at_a_time",
    "listen": "proving.bench.client_roles:listen",
    "read": "proving.bench.client_roles:read",
    "controller": "proving.bench.command_roles:controller",
    "echo": "proving.bench.command_roles:echo",
    "bare-device": "proving.bench.command_roles:bare_device",
    "bare-bridge": "proving.bench.alert_roles:bare_bridge",
    "send-alerts": "proving.bench.alert_roles:send_alerts",
    "send-tables": "proving.bench.load:send_tables",
    "call-commands": "proving.bench.command_roles:call_commands",
}


@dataclass(frozen=True, slots=True)
class Desk:
    """What a role has at hand."""

    settings: Settings
    clock: Clock
    result: Path

    def deliver(self, result: Any) -> None:
        """Hand in the result, whole or not at all."""
        beside = self.result.with_suffix(".part")
        beside.write_bytes(msgspec.json.encode(result))
        beside.replace(self.result)

    def announce(self) -> None:
        """Say that this role is ready."""
        self.result.with_suffix(".ready").touch()

    def retract(self) -> None:
        """Say that it is not ready after all."""
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
    """Play one role."""
    name, result, task = sys.argv[1:]
    logging.basicConfig(level=os.environ.get("SDP_LOG_LEVEL", "WARNING"), stream=sys.stderr)
    module, _, function = ROLES[name].partition(":")
    play: Callable[..., Any] = getattr(import_module(module), function)
    desk = Desk(load_settings(), SystemClock(), Path(result))
    found = play(desk, **msgspec.json.decode(task))
    if found is not None:
        desk.deliver(found)
    # Tango's threads may still call back, which crashes an interpreter that is being taken down.
    logging.shutdown()
    os._exit(0)


if __name__ == "__main__":
    main()

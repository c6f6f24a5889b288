"""What the processes of a bench or a fault run do: ``python -m proving.roles ROLE RESULT TASK``.

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
from facade.files import write_whole
from facade.infra.processes import Process
from facade.runtime.stopping import end_process

ROLES = {
    "fill": "proving.bench.load:fill",
    "fill-columnar": "proving.bench.load:fill_columnar",
    "worker": "proving.bench.throughput_roles:worker",
    "fill-logs": "proving.bench.logs:fill",
    "flood-logs": "proving.bench.logs:write_flood",
    "log-worker": "proving.bench.logs:worker",
    "bare": "proving.bench.throughput_roles:bare",
    "memo": "proving.bench.peers:write_one_by_one",
    "sink": "proving.bench.peers:sink",
    "watch-accounts": "proving.bench.restarts:watch",
    "listen": "proving.bench.latency:hear",
    "read": "proving.bench.latency:read",
    "controller": "proving.bench.hops:controller",
    "echo": "proving.bench.hops:echo",
    "bare-device": "proving.bench.hops:bare_device",
    "bare-bridge": "proving.bench.hops:bare_bridge",
    "send-alerts": "proving.bench.hops:send_alerts",
    "call-commands": "proving.bench.hops:call_commands",
    "broker-send": "proving.bench.brokers:send",
    "broker-receive": "proving.bench.brokers:receive",
    "broker-answer": "proving.bench.brokers:answer",
    "broker-ask": "proving.bench.brokers:ask",
    "publish-blocks": "proving.bench.blocks:publish",
    "fail-blocks": "proving.bench.blocks:fail_blocks",
    "archive-worker": "proving.bench.archive:worker",
    "archive-bare": "proving.bench.archive:bare",
    "archive-read": "proving.bench.archive:read",
    "subscribe-alerts": "proving.bench.visit:subscribe",
    "send-tables": "proving.bench.load:send_tables",
    "telescope": "proving.telescope:telescope",
    "tm": "proving.demo.tm:observe",
    "call-random-commands": "proving.fault_runs.commands:call_random_commands",
    "follow-alerts": "proving.fault_runs.alerts:follow_alerts",
    "crowd": "proving.fault_runs.overload:crowd",
    "tell-blocks": "proving.fault_runs.blocks:tell_blocks",
    "produce-tables": "proving.fault_runs.tables:produce_tables",
}


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
        """Ask it to come to its end and deliver."""
        self.result.with_suffix(".stop").touch()


def command_line(role: str, log: Path, task: dict[str, Any]) -> list[str]:
    """Return how a role is started, after what an earlier one left beside the log is removed."""
    for left in (".json", ".ready", ".stop", ".go", ".address"):
        log.with_suffix(left).unlink(missing_ok=True)
    task_text = msgspec.json.encode(task).decode()
    return [sys.executable, "-m", "proving.roles", role, str(log.with_suffix(".json")), task_text]


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
    module, _, function = ROLES[name].partition(":")
    play: Callable[..., Any] = getattr(import_module(module), function)
    context = RoleContext(load_settings(), SystemClock(), Path(result))
    found = play(context, **msgspec.json.decode(task))
    if found is not None:
        context.deliver(found)
    end_process()


if __name__ == "__main__":
    main()

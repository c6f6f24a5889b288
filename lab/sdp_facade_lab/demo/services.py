"""Kafka and the Tango database of a demo: a demo stops them if it, or an earlier demo, has started them."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from facade.infra import local
from facade.kernel.errors import InfraError
from sdp_facade_lab.demo.options import DemoOptions

_FILE = "services.json"
"""Process ids of the services that a demo has started; none yet: they are being started. No file: nothing is ours."""

Say = Callable[[str], None]


def bring_up(options: DemoOptions, say: Say) -> local.Endpoints:
    """Start the services that do not run; note them as ours if none did, or if an earlier demo has left them."""
    before, file = alive(options), _file(options)
    if before and not are_ours(options):
        file.unlink(missing_ok=True)
        say(f"services: some run already and will be left running: {', '.join(before)}")
    else:
        if before:
            say(f"services: an earlier demo had left {', '.join(before)}; they are stopped with this one")
        file.write_bytes(msgspec.json.encode([]))
    endpoints = local.up(local.LocalOptions(state_dir=options.state_dir, secure=options.secure or None), report=say)
    if file.exists():
        adopt(options)
    say(f"services: Kafka at {endpoints.bootstrap}, Tango database at TANGO_HOST={endpoints.tango_host}")
    return endpoints


def stop_ours(options: DemoOptions, say: Say) -> None:
    """Stop the services if a demo has started them."""
    if not are_ours(options):
        return
    local.down(options.state_dir, report=say)
    if left := alive(options):
        raise InfraError(f"services: expected none to run any more, got {', '.join(left)}")
    _file(options).unlink()


def are_ours(options: DemoOptions) -> bool:
    with suppress(OSError, msgspec.MsgspecError):
        started = msgspec.json.decode(_file(options).read_bytes(), type=list[int])
        return not started or set(alive(options).values()) <= set(started)
    return False


def adopt(options: DemoOptions) -> None:
    """Take note that services of a demo have other process ids: someone has started them again."""
    _file(options).write_bytes(msgspec.json.encode([*alive(options).values()]))


def alive(options: DemoOptions) -> dict[str, int]:
    """Return the process ids of the services that run, by name."""
    return {line.process: line.pid for line in local.status(options.state_dir) if line.alive and line.pid is not None}


def _file(options: DemoOptions) -> Path:
    return options.folder / _FILE

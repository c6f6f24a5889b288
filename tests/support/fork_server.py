"""Forks the processes under test off one that has imported what they import: ``python -m tests.support.fork_server``.

A process of ours spends most of its start on imports: 0.8 s of processor time for a device server, and a run of all
tests starts several hundred processes. What is forked is a process like any other, with an id, a session, a log, an
environment and an exit code of its own, and it can be killed and stopped. Some things differ. Its command line and its
environment in ``/proc`` are those of the server, modules are imported already, linear algebra has one thread, and
output is not buffered. So tests of imports, of the start
itself and of memory execute their programs; so does whatever has an environment that Python or a library may have read
before. The server makes no thread, and no object of Kafka or Tango.
"""

import gc
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

_ROOT = Path(__file__).parents[2]
_BIN = Path(sys.executable).parent
_READ_LATE = (
    "SDP_",
    "KAFKA_",
    "TANGO_",
    "FACADE_",
    "JAVA_",
    "PYTANGO_DATABASE_",
    "PYTHONUNBUFFERED",
    "PYTEST_",
    "PATH",
)
"""What the variables begin with that no module reads while it is imported."""
_IMPORTED = (
    "databaseds.database", "devices.alerts", "devices.commands", "devices.kernel.server", "facade.archive.cli",
    "facade.flows.alerts.cli", "facade.flows.logs.cli", "facade.flows.tables.cli", "facade.flows.telemetry.cli",
    "facade.flows.telemetry.simulator.cli", "facade.kernel.cli.app", "facade.sdk.controller.simulator.cli",
)  # fmt: skip
_THREADLESS = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""What keeps NumPy and Arrow from starting threads while they are imported."""
_ONE_AT_A_TIME = threading.Lock()
_LONGEST = 1 << 17
"""Longest request [bytes]."""


def can_fork(argv: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Return whether a program may be forked: it is one of ours, and nothing that is read at an import differs."""
    telemetry = environment.get("TANGO_TELEMETRY_ENABLE") == os.environ.get("TANGO_TELEMETRY_ENABLE")
    ours = shutil.which(argv[0], path=environment.get("PATH")) == str(_BIN / Path(argv[0]).name)
    return ours and telemetry and _program(argv) is not None and _fixed(environment) == _server(os.getpid()).fixed


def start(argv: Sequence[str], environment: Mapping[str, str], log: Path, errors: Path | None = None) -> int:
    """Start a program in a session of its own, and return the id of its process.

    Both files are appended to; by default errors go to the log as well.
    """
    files = {"output": str(log), "errors": str(errors or log)}
    return _ask(argv=[*argv], environment=dict(environment), folder=os.getcwd(), **files)


def run(argv: Sequence[str], environment: Mapping[str, str], timeout: float) -> subprocess.CompletedProcess[bytes]:
    """Run a program to its end, with no input, as `subprocess.run` does."""
    if not can_fork(argv, environment):
        quiet = subprocess.DEVNULL
        return subprocess.run(argv, env=environment, stdin=quiet, capture_output=True, timeout=timeout, check=False)
    with TemporaryDirectory() as folder:
        files = Path(folder) / "output", Path(folder) / "errors"
        pid = start(argv, environment, *files)
        ended = os.pidfd_open(pid)
        try:
            is_over = bool(select.select([ended], [], [], timeout)[0])
        finally:
            os.close(ended)
        if not is_over:
            os.killpg(pid, signal.SIGKILL)
        code = exit_code(pid)
        output, errors = (file.read_bytes() for file in files)
        if not is_over:
            raise subprocess.TimeoutExpired(argv, timeout, output, errors)
        return subprocess.CompletedProcess(argv, code, output, errors)


def exit_code(pid: int) -> int:
    """Return the exit code of a process that has ended, as `os.waitstatus_to_exitcode` gives it."""
    return os.waitstatus_to_exitcode(_ask(pid=pid))


def _fixed(environment: Mapping[str, str]) -> dict[str, str]:
    fixed = {name: value for name, value in environment.items() if not name.startswith(_READ_LATE)}
    return {"PYTHONPATH": str(_ROOT), **fixed}


def _ask(**request: Any) -> int:
    asked = _server(os.getpid()).asked
    with _ONE_AT_A_TIME:
        asked.send(json.dumps(request).encode())
        answer = asked.recv(_LONGEST)
    assert answer, "the fork server has ended"
    return int(answer)


class _Server(NamedTuple):
    asked: socket.socket
    fixed: Mapping[str, str]
    """What it may have read of its environment while it imported."""


@cache
def _server(_: int) -> _Server:
    """Start the server of this process; it ends when this process ends."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", "tests.support.fork_server", str(its.fileno())],
            stdin=subprocess.DEVNULL,
            cwd=_ROOT,
            env={**os.environ, "PYTHONPATH": str(_ROOT), **_THREADLESS},
            pass_fds=[its.fileno()],
            start_new_session=True,
        )
    process.returncode = 0  # it ends by itself
    return _Server(ours, {**_fixed(os.environ), "PYTHONPATH": str(_ROOT)})


@cache
def _scripts() -> dict[str, str]:
    scripts = {one.name: one.value for one in entry_points(group="console_scripts")}
    return {name: scripts[name] for name in ("sdp-facade", "SdpFacade", "PyDatabaseds")}


def _program(argv: Sequence[str]) -> Callable[[], object] | None:
    """Return what runs a program, as the interpreter or its console script would."""
    match argv:
        case [sys.executable, "-m", module, *_]:
            return partial(runpy.run_module, module, run_name="__main__", alter_sys=True)
        case [sys.executable, file, *_] if file.endswith(".py"):
            return partial(runpy.run_path, file, run_name="__main__")
    module, _, function = _scripts().get(Path(argv[0]).name, "").partition(":")
    return (lambda: sys.exit(getattr(import_module(module), function)())) if module else None


def _become(argv: list[str], environment: dict[str, str], output: str, errors: str, folder: str) -> None:
    """Give this process, which has just been forked, what a new one would have."""
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, file in enumerate((output, errors), start=1):
        opened = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        os.dup2(opened, number)
        os.close(opened)
    script = argv[0] != sys.executable
    sys.argv = argv if script else argv[1 + (argv[1] == "-m") :]
    if not script and argv[1] != "-m":
        sys.path[0] = str(Path(argv[1]).parent)


def main(descriptor: int) -> None:
    """Fork what is asked for, until the asking process ends; in what is forked, run its program."""
    for module in _IMPORTED:
        import_module(module)
    assert len(os.listdir("/proc/self/task")) == 1, "a fork would wait for locks of threads that it does not have"
    gc.collect()
    gc.freeze()  # what is not looked at stays shared
    asked = socket.socket(fileno=descriptor)
    while request := asked.recv(_LONGEST):
        wanted = json.loads(request)
        if "pid" in wanted:
            asked.send(str(os.waitpid(wanted["pid"], 0)[1]).encode())
        elif os.fork() == 0:
            try:
                _become(**wanted)
            finally:
                asked.send(str(os.getpid()).encode())
                asked.close()
            program = _program(wanted["argv"])
            assert program is not None
            program()
            return
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))

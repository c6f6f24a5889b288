"""The local Tango database: pytango-db on SQLite, in pure Python.

The package never imports Tango here: one short-lived child process asks the database until it
answers, which is also the only question that counts (an open port says little: the database may
still be loading).
"""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from facade.errors import InfraError
from facade.infra import tools
from facade.infra.ports import HOST
from facade.infra.processes import Process, check_alive

# "2" is the instance name that Tango's own tools expect: the database is the device sys/database/2.
_INSTANCE: Final = "2"

_STARTS_WITHIN_S: Final = 30.0
_POLL: Final = """
import sys, time
import psutil, tango
port, pids, deadline = int(sys.argv[1]), list(map(int, sys.argv[3:])), time.monotonic() + float(sys.argv[2])

def runs(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False

while True:
    try:
        tango.Database("127.0.0.1", port).get_server_list()
        sys.exit(0)
    except tango.DevFailed as error:
        reason = error.args[0].desc
    if not all(map(runs, pids)):
        sys.exit("a process of the database ended")
    if time.monotonic() > deadline:
        sys.exit(reason)
    time.sleep(0.02)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TangoDatabase:
    """Starts pytango-db on one SQLite file in the folder."""

    folder: Path
    report: tools.Notify

    def launch(self, port: int, started: Callable[[Process], None]) -> None:
        """Start the server; it makes the file if there is none."""
        # Beside the interpreter rather than on the PATH: the virtual environment need not be active.
        program = Path(sys.executable).with_name("PyDatabaseds")
        if not program.exists():
            raise InfraError(
                f"{program} is not there: install pytango-db in this environment (`pip install pytango-db`)"
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        env = {
            **os.environ,
            "PYTANGO_DATABASE_NAME": str(self.folder / "tango.db"),
            "TANGO_HOST": f"{HOST}:{port}",
        }
        argv = [str(program), "--host", HOST, "--port", str(port), _INSTANCE]
        started(Process.start("tango-db", argv, log=self.folder / "tango-db.log", env=env))

    def await_ready(self, port: int, processes: Sequence[Process]) -> None:
        """Return when the database answers a query.

        Raises
        ------
        PortTakenError
            Its server ended because the port is in use.
        InfraError
            It ended for another reason, or does not answer in time.
        """
        self.report(f"Tango database: starting on {HOST}:{port}")
        pids = [str(process.pid) for process in processes]
        argv = [sys.executable, "-W", "ignore", "-c", _POLL, str(port), str(_STARTS_WITHIN_S), *pids]
        try:
            tools.run(argv, what=f"asking the Tango database on {HOST}:{port}")
        except InfraError as error:
            for process in processes:
                check_alive(process)
            raise InfraError(
                f"the Tango database does not answer within {_STARTS_WITHIN_S:g} s: {error}\n"
                f"the end of {processes[-1].log}:\n{processes[-1].tail()}"
            ) from error
        # Another database may answer while ours has just found the port taken.
        for process in processes:
            check_alive(process)

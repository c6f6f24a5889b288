"""The Tango database that `sdp-facade infra` starts."""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from facade.infra import tools
from facade.infra.ports import HOST
from facade.infra.processes import Process, check_alive
from facade.kernel.errors import InfraError

# "2" is the instance name in Tango's own tools: the database is the device sys/database/2.
_INSTANCE: Final = "2"

_STARTS_WITHIN_S: Final = 90.0
_POLL: Final = """
import sys, time
import psutil, tango
host, port, pids = sys.argv[1], int(sys.argv[2]), list(map(int, sys.argv[4:]))
deadline = time.monotonic() + float(sys.argv[3])

def runs(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False

while True:
    try:
        tango.Database(host, port).get_server_list()
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
    host: str = HOST

    def launch(self, port: int, started: Callable[[Process], None]) -> None:
        """Start the server; it creates the file if necessary."""
        # Beside the interpreter instead of the PATH: the virtual environment need not be active.
        program = Path(sys.executable).with_name("PyDatabaseds")
        if not program.exists():
            raise InfraError(
                f"{program} is not there: install pytango-db in this environment (`pip install pytango-db`)"
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        env = {
            **os.environ,
            "PYTANGO_DATABASE_NAME": str(self.folder / "tango.db"),
            "TANGO_HOST": f"{self.host}:{port}",
        }
        argv = [str(program), "--host", self.host, "--port", str(port), _INSTANCE]
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
        self.report(f"Tango database: starting on {self.host}:{port}")
        pids = [str(process.pid) for process in processes]
        argv = [sys.executable, "-W", "ignore", "-c", _POLL, self.host, str(port), str(_STARTS_WITHIN_S), *pids]
        try:
            tools.run(argv, what=f"asking the Tango database on {self.host}:{port}")
        except InfraError as error:
            for process in processes:
                check_alive(process)
            raise InfraError(
                f"the Tango database does not answer within {_STARTS_WITHIN_S:g} s: {error}\n"
                f"the end of {processes[-1].log}:\n{processes[-1].tail()}"
            ) from error
        # Another database may answer if ours has just found the port taken.
        for process in processes:
            check_alive(process)

"""The Tango database of an observatory: the C++ server with a private MariaDB, unpacked but not installed.

MariaDB listens on a Unix socket only. Never start a second database server on the same schema:
when it ends it un-exports ``sys/database/2``, and clients that look the database up fail from then on.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from facade.clock import Clock, SystemClock, wait_until
from facade.errors import InfraError
from facade.infra import tools
from facade.infra.debian import TANGO_DB, unpacked_packages
from facade.infra.ports import HOST
from facade.infra.processes import Process
from facade.infra.service import check_alive
from facade.infra.tango_database import INSTANCE, await_tango_database

_STARTS_WITHIN_S: Final = 60.0
_LONGEST_SOCKET: Final = 107  # sun_path holds 108 bytes with the final zero
_SCHEMA: Final = "tango"  # the stored procedures name it, so it is no choice
_ACCOUNT: Final = """
DROP DATABASE IF EXISTS tango;
CREATE DATABASE tango;
CREATE OR REPLACE USER tango@localhost IDENTIFIED BY 'tango';
GRANT ALL ON tango.* TO tango@localhost;
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MariaDbTangoDatabase:
    """Starts MariaDB on ``<folder>/data`` and the C++ database server in front of it."""

    folder: Path
    report: tools.Report
    clock: Clock = field(default_factory=SystemClock)

    def launch(self, port: int, started: Callable[[Process], None]) -> None:
        """Unpack the packages, make the data folder and load the schema (all once); start both servers."""
        root = unpacked_packages(TANGO_DB, self.report)
        env = root.environment()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._make_data(root.path, env)
        server = Process.start("mariadb", self._server_argv(root.path), log=self.folder / "mariadb.log", env=env)
        started(server)
        client = [str(root.path / "usr/bin/mariadb"), "--no-defaults", "-uroot", f"--socket={self.socket}"]
        self._await_mariadb(client, env, server)
        self._load_schema(root.path, client, env)
        env |= {
            "TANGO_HOST": f"{HOST}:{port}",
            "MYSQL_HOST": "localhost",
            "MYSQL_UNIX_PORT": str(self.socket),
        }
        env |= {"MYSQL_USER": "tango", "MYSQL_PASSWORD": "tango", "MYSQL_DATABASE": _SCHEMA}
        argv = [
            str(root.path / "usr/lib/tango/DataBaseds"),
            INSTANCE,
            "-ORBendPoint",
            f"giop:tcp:{HOST}:{port}",
        ]
        started(Process.start("tango-db", argv, log=self.folder / "tango-db.log", env=env))

    def await_ready(self, port: int, processes: Sequence[Process]) -> None:
        """Return when the database answers a query."""
        await_tango_database(port, processes, self.report)

    @property
    def socket(self) -> Path:
        """The Unix socket: in the folder, unless the system's limit on the length forbids it."""
        here = self.folder / "mariadb.sock"
        if len(os.fsencode(here)) <= _LONGEST_SOCKET:
            return here
        digest = hashlib.sha256(os.fsencode(self.folder)).hexdigest()[:12]
        return Path(tempfile.gettempdir()) / f"sdp-facade-{os.getuid()}-{digest}" / "mariadb.sock"

    def clean_up(self) -> None:
        """Remove what lies outside the folder, when nothing runs any more."""
        if self.socket.parent != self.folder:
            shutil.rmtree(self.socket.parent, ignore_errors=True)

    def _make_data(self, root: Path, env: dict[str, str]) -> None:
        if self.socket.parent != self.folder:
            self.socket.parent.mkdir(mode=0o700, exist_ok=True)
        (self.folder / "tmp").mkdir(exist_ok=True)
        if (self.folder / "data").exists():
            return
        self.report("Tango database: making MariaDB's data folder (once)")
        # Made beside its place and renamed: half a data folder cannot be started.
        half = self.folder / "data.new"
        shutil.rmtree(half, ignore_errors=True)
        argv = [str(root / "usr/bin/mariadb-install-db"), "--no-defaults", f"--basedir={root / 'usr'}"]
        argv += [f"--datadir={half}", "--auth-root-authentication-method=normal", "--skip-test-db"]
        argv += ["--skip-name-resolve", *_user_option()]
        tools.run(argv, what="making MariaDB's data folder", env=env)
        half.rename(self.folder / "data")

    def _server_argv(self, root: Path) -> list[str]:
        usr = root / "usr"
        argv = [str(usr / "sbin/mariadbd"), "--no-defaults", f"--basedir={usr}"]
        argv += [f"--lc-messages-dir={usr / 'share/mysql'}", f"--plugin-dir={usr / 'lib/mysql/plugin'}"]
        argv += [
            f"--datadir={self.folder / 'data'}",
            f"--socket={self.socket}",
            f"--tmpdir={self.folder / 'tmp'}",
        ]
        argv += [f"--pid-file={self.folder / 'mariadb.pid'}", "--skip-networking", "--skip-name-resolve"]
        # Small and without a replication log: one local database. A kill of the process loses nothing,
        # only a crash of the machine could lose the last second.
        argv += ["--innodb-buffer-pool-size=16M", "--innodb-flush-log-at-trx-commit=2", "--skip-log-bin"]
        return argv + _user_option()

    def _await_mariadb(self, client: list[str], env: dict[str, str], server: Process) -> None:
        self.report("Tango database: starting MariaDB")
        said = ""

        def answers() -> bool:
            nonlocal said
            check_alive(server)
            try:
                tools.run([*client, "-e", "SELECT 1"], what="asking MariaDB", env=env)
            except InfraError as error:
                said = str(error)
                return False
            return True

        if not wait_until(self.clock, answers, _STARTS_WITHIN_S):
            end = server.tail()
            raise InfraError(f"{said}\nwithin {_STARTS_WITHIN_S:g} s; the end of {server.log}:\n{end}")

    def _load_schema(self, root: Path, client: list[str], env: dict[str, str]) -> None:
        loaded = self.folder / "data" / "schema-loaded"
        if loaded.exists():
            return
        self.report("Tango database: loading the schema (once)")
        tools.run(client, what="making the schema's account", env=env, text=_ACCOUNT)
        # The file includes others by their installed, absolute path.
        install = root / "usr/share/dbconfig-common/data/tango-db/install/mysql"
        text = install.read_text(errors="replace").replace("source /usr/share/", f"source {root}/usr/share/")
        tools.run([*client, "-D", _SCHEMA], what=f"loading the schema {install}", env=env, text=text)
        loaded.touch()


def _user_option() -> list[str]:
    """MariaDB refuses to run as root unless it is told to."""
    return ["--user=root"] if os.geteuid() == 0 else []

"""TangoAccessControl before the devices of the facade: who may only read cannot command; with its traps."""

import getpass
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import tango

from facade.infra.ports import HOST, choose_port
from tests.interoperability.foreign import DEBIAN, environment, installed, run
from tests.support.deployment import Deployment, subarray_device
from tests.support.waiting import until

LEFT_OUT = DEBIAN / "left-out"
if LEFT_OUT.exists():
    pytest.skip(LEFT_OUT.read_text(), allow_module_level=True)

DEVICE = subarray_device(1)
CLIENT = """
import json, sys, tango
device, said = tango.DeviceProxy(sys.argv[1]), {}
def ask(name, call):
    try:
        call()
        said[name] = "taken"
    except tango.DevFailed as failed:
        said[name] = failed.args[0].reason
ask("read", lambda: device.obsState)
ask("event", lambda: device.subscribe_event("obsState", tango.EventType.CHANGE_EVENT, lambda event: None))
ask("query", lambda: device.GetCommandHistory(1))
ask("command", lambda: device.GiveCommand("{}"))
ask("write", lambda: device.write_attribute("adminMode", 0))
ask("label", lambda: device.set_attribute_config(device.get_attribute_config("commandsPending")))
print(json.dumps(said))
"""
READS = {"read": "taken", "event": "taken", "label": "taken"}
REFUSED = dict.fromkeys(("query", "command", "write"), "API_ReadOnlyMode")
"""The label is a trap: the library lets those who may only read change the configuration of attributes."""
DONE = {"query": "taken", "command": "API_CommandFailed", "write": "taken"}
"""A command with a wrong argument comes to the device, which refuses it."""


@contextmanager
def tango_database(folder: Path) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Run MariaDB and Tango's own database; return its address, and the environment of its programs."""
    root, socket, port, sql = Path(installed(DEBIAN)) / "root", folder / "m.sock", choose_port(), choose_port()
    own = {
        "PATH": f"{root}/usr/bin:{root}/usr/sbin:{root}/usr/lib/tango:{os.environ['PATH']}",
        "LD_LIBRARY_PATH": f"{root}/usr/lib/x86_64-linux-gnu",
        "TANGO_HOST": f"{HOST}:{port}",
        "SUPER_TANGO": "true",
        **dict.fromkeys(("MYSQL_USER", "MYSQL_PASSWORD", "MYSQL_DATABASE"), "tango"),
        "MYSQL_HOST": f"{HOST}:{sql}",
    }
    at = [
        "--no-defaults",
        f"--basedir={root}/usr",
        f"--datadir={folder}/data",
        *(["--user=root"] if os.geteuid() == 0 else []),
    ]
    client = ["mariadb", "--no-defaults", "--user=root", "--host=localhost", f"--socket={socket}"]
    tables = (root / "usr/share/dbconfig-common/data/tango-db/install/mysql").read_text()
    once = "--auth-root-authentication-method=normal --skip-test-db --skip-name-resolve".split()
    run(["mariadb-install-db", *at, *once], own, folder)
    # TangoAccessControl writes rows without a value for each field, which MariaDB refuses by default.
    server = [f"--socket={socket}", f"--bind-address={HOST}", f"--port={sql}", "--sql-mode=", "--skip-name-resolve"]
    share = [f"--lc-messages-dir={root}/usr/share/mysql", f"--plugin-dir={root}/usr/lib/mysql/plugin"]
    with ExitStack() as running:
        running.enter_context(started(["mariadbd", *at, *share, *server], own, folder))
        until(lambda: subprocess.run([*client, "-e", "SELECT 1"], env=own, capture_output=True).returncode == 0, "SQL")
        user = f"'tango'@'{HOST}'"
        run(client, own, folder, text=f"CREATE DATABASE tango; CREATE USER {user} IDENTIFIED BY 'tango';")
        run(client, own, folder, text=f"GRANT ALL ON tango.* TO {user};")
        run([*client, "tango"], own, folder, text=tables.replace("source /usr/", f"source {root}/usr/"))
        argv = ["DataBaseds", "2", "-ORBendPoint", f"giop:tcp:{HOST}:{port}"]
        running.enter_context(started(argv, own, folder))
        yield own["TANGO_HOST"], own


@contextmanager
def started(argv: list[str], settings: Mapping[str, str], folder: Path) -> Iterator[None]:
    with (folder / f"{argv[0]}.log").open("wb") as log:
        process = subprocess.Popen(argv, env=settings, cwd=folder, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def answers(tango_host: str) -> bool:
    try:
        tango.Database(*tango_host.split(":"))
    except tango.DevFailed:
        return False
    return True


def test_who_may_only_read_reads_and_gets_events_and_cannot_command(
    system: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUPER_TANGO", "true")  # of this process, which gives the rights

    def asks(**more: str) -> dict[str, str]:
        settings = environment(tango_host, tmp_path) | more
        return dict(json.loads(run([sys.executable, "-c", CLIENT, DEVICE], settings, tmp_path).stdout))

    with tango_database(tmp_path) as (tango_host, own):
        until(lambda: answers(tango_host), "Tango's database")
        ours, guarded = tango.Database(*system.tango_host.split(":")), tango.Database(*tango_host.split(":"))
        admin = ours.import_device("dserver/SdpFacade/subarray").name
        for name, of_class in ((DEVICE, "SdpSubarray"), (admin, "DServer")):
            known, exported = tango.DbDevInfo(), tango.DbDevExportInfo()
            known.name, known.server, known._class = name, "SdpFacade/subarray", of_class
            exported.name, exported.ior, exported.host = name, ours.import_device(name).ior, HOST
            exported.version, exported.pid = "6", 1
            guarded.add_device(known)
            guarded.export_device(exported)
        assert asks() == READS | DONE, "nothing is guarded before TangoAccessControl is registered"
        with started(["TangoAccessControl", "1"], own, tmp_path):
            name = "sys/access_control/1"
            until(lambda: list(guarded.get_device_exported(name)), "TangoAccessControl")
            control = tango.DeviceProxy(f"tango://{tango_host}/{name}")
            control.RegisterService()
            user = getpass.getuser()
            control.AddAddressForUser([user, "*.*.*.*"])
            control.AddDeviceForUser([user, "*/*/*", "read"])
            assert asks() == READS | REFUSED
            guarded.put_class_property("SdpSubarray", {"AllowedAccessCmd": ["GetCommandHistory"]})
            assert asks() == READS | REFUSED | {"query": "taken"}
            assert asks(SUPER_TANGO="true") == READS | DONE, "the client says so itself"
            control.RemoveDeviceForUser([user, "*/*/*", "read"])
            control.AddDeviceForUser([user, "*/*/*", "write"])
            assert asks() == READS | DONE
        without = READS | REFUSED | {"event": "API_ReadOnlyMode"}
        assert asks() == without, "without TangoAccessControl everybody only reads, and nobody subscribes"

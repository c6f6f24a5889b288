"""Devices in the Tango database that remain from a larger deployment."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress

import tango

from devices.kernel.databases import open_database
from facade.kernel.config import Settings
from facade.kernel.errors import InfraError
from facade.kernel.icd.model import Icd
from facade.kernel.icd.telescope import instance_of
from facade.kernel.instances import number_of, pattern_of, registration
from facade.kernel.names import SERVER


def find_surplus(icd: Icd, settings: Settings, tango_host: str) -> dict[str, list[str]]:
    """Return the devices for `prune`, by device-server instance; an empty list for an instance without devices.

    Only devices of the interface count, by class and name; any other device of the server belongs to the site.

    Raises
    ------
    InfraError
        The database does not answer or refuses.
    """
    servers = registration(icd, settings)["servers"][SERVER]
    wanted = {name.lower() for classes in servers.values() for names in classes.values() for name in names}
    own = re.compile("|".join(pattern_of(instance_of(icd.telescope, one.instance)) for one in icd.classes.values()))
    found: dict[str, list[str]] = {}
    try:
        database = open_database(tango_host)
        for server in database.get_server_list(f"{SERVER}/*"):
            instance = server.partition("/")[2]
            listed = list(database.get_device_class_list(server))
            devices = [
                (name, kind) for name, kind in zip(listed[::2], listed[1::2], strict=True) if kind.lower() != "dserver"
            ]
            surplus = [
                name
                for name, kind in devices
                if name.lower() not in wanted and kind in icd.classes and number_of(icd.classes[kind], name) is not None
            ]
            if surplus or (not devices and instance not in servers and own.fullmatch(instance)):
                found[instance] = sorted(surplus)
    except tango.DevFailed as failed:
        raise _refused(failed, tango_host) from failed
    return found


def prune(surplus: Mapping[str, Sequence[str]], tango_host: str) -> int:
    """Remove devices, and empty instances, from the Tango database.

    Returns
    -------
    int
        Number of removed devices.

    Raises
    ------
    InfraError
        One of the instances runs, or the database does not answer or refuses.
    """
    if running := [instance for instance in surplus if _answers(f"{tango_host}/dserver/{SERVER}/{instance}")]:
        raise InfraError(
            f"devices cannot be removed: expected their device servers to be stopped, got running: "
            f"{', '.join(f'{SERVER} {one}' for one in running)}; stop them, then try again"
        )
    try:
        database = open_database(tango_host)
        for instance, devices in surplus.items():
            server = f"{SERVER}/{instance}"
            for device in devices:
                database.delete_device(device)
            left = list(database.get_device_class_list(server))[1::2]
            if all(kind.lower() == "dserver" for kind in left):
                database.delete_server(server)
    except tango.DevFailed as failed:
        raise _refused(failed, tango_host) from failed
    return sum(map(len, surplus.values()))


def _answers(device: str) -> bool:
    with suppress(tango.DevFailed):
        return bool(tango.DeviceProxy(f"tango://{device}").ping() > 0)
    return False


def _refused(failed: tango.DevFailed, tango_host: str) -> InfraError:
    return InfraError(
        f"devices cannot be looked through: expected a Tango database at TANGO_HOST={tango_host}, "
        f"got: {failed.args[0].desc}"
    )

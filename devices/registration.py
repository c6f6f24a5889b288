"""Registers the devices of a deployment in the Tango database, through dsconfig."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from facade.config import Settings
from facade.errors import InfraError
from facade.icd.model import DeviceClass, Icd
from facade.racks import Racks

SERVER = "SdpFacade"
_DONE = (0, 2)
"""Exit codes of json2tango: nothing had to change; the changes were written."""


def devices_of(device_class: DeviceClass, settings: Settings, racks: Racks) -> dict[str, list[str]]:
    """Give the device names of a class by device-server instance."""
    if "{subarray" in device_class.device:
        numbers = range(1, settings.subarrays + 1)
        return {device_class.instance: [device_class.device.format(subarray=number) for number in numbers]}
    if "{node" not in device_class.device:
        return {device_class.instance: [device_class.device]}
    names: dict[str, list[str]] = {}
    for node in range(settings.nodes):
        instance = device_class.instance.format(rack=racks.rack(node))
        names.setdefault(instance, []).append(device_class.device.format(node=node))
    return names


def registration(icd: Icd, settings: Settings) -> dict[str, Any]:
    """Give all servers, classes and devices in dsconfig's form."""
    racks = Racks(settings.rack_size, icd.topics["ingest.summary"].partitions)
    server: dict[str, dict[str, dict[str, dict[str, Any]]]] = {}
    for name, device_class in icd.classes.items():
        for instance, devices in devices_of(device_class, settings, racks).items():
            server.setdefault(instance, {})[name] = {device: {} for device in devices}
    return {"servers": {SERVER: server}}


def instances(icd: Icd, settings: Settings) -> list[str]:
    """Give the device-server instances of the deployment."""
    return sorted(registration(icd, settings)["servers"][SERVER])


def register(icd: Icd, settings: Settings, tango_host: str) -> int:
    """Write the devices into the Tango database; devices of other servers are left alone.

    Returns
    -------
    int
        Devices registered.

    Raises
    ------
    InfraError
        The database does not answer or refuses.
    """
    content = registration(icd, settings)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sdp.json"
        path.write_text(json.dumps(content))
        done = subprocess.run(
            [sys.executable, "-m", "dsconfig.json2tango", "--write", "--update", "--sleep", "0", str(path)],
            env={**os.environ, "TANGO_HOST": tango_host},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    if done.returncode not in _DONE:
        raise InfraError(
            f"the devices could not be registered at TANGO_HOST={tango_host}: {(done.stderr or done.stdout)[-500:]}"
        )
    return sum(len(names) for servers in content["servers"][SERVER].values() for names in servers.values())

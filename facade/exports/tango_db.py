"""Which servers, classes and devices a deployment has, in the form of dsconfig (json2tango).

That is all the database has to know: devices have no properties, as their settings are in the environment of the
servers, and attributes need none for events, as all are pushed from code and none is polled.
"""

import json
from collections.abc import Mapping
from typing import Any

from facade.config import Settings
from facade.icd.model import Icd
from facade.instances import devices_of

SERVER = "SdpFacade"
_TITLE = "sdp-tango-facade"
_FILE = "tango-db/sdp.json"


def export(icd: Icd) -> Mapping[str, str]:
    """Return the registration of a deployment with the default settings; see `facade.exports.files`."""
    return {_FILE: json.dumps(registration(icd, Settings()), indent=2) + "\n"}


def registration(icd: Icd, settings: Settings) -> dict[str, Any]:
    """Return all servers, classes and devices in dsconfig's form, and what Jive shows of a class."""
    server: dict[str, dict[str, dict[str, dict[str, Any]]]] = {}
    for name, device_class in icd.classes.items():
        for instance, devices in devices_of(device_class, settings).items():
            server.setdefault(instance, {})[name] = {device: {} for device in devices}
    about = {
        name: {"properties": {"ProjectTitle": [_TITLE], "Description": [device_class.description]}}
        for name, device_class in icd.classes.items()
    }
    return {"servers": {SERVER: server}, "classes": about}


def instances(icd: Icd, settings: Settings) -> list[str]:
    """Return the device-server instances of the deployment."""
    return sorted(registration(icd, settings)["servers"][SERVER])

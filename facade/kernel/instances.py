"""The devices of a deployment, and the device-server instances that serve them, from the ICD's templates."""

import re
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, NamedTuple

from facade.kernel import names
from facade.kernel.config import VARIABLE_OF, Settings
from facade.kernel.errors import ConfigError
from facade.kernel.icd.model import DeviceClass, Executor, Icd
from facade.kernel.icd.telescope import instance_of
from facade.kernel.names import DISTRIBUTION, PROGRAM, SERVER

_FIELD = re.compile(r"\{(\w+)(?::0?(\d+)d)?\}")


class InstanceFamily(NamedTuple):
    """Numbering of the devices of a class, such as nodes."""

    word: str
    first: int
    size: Callable[[Settings], int]
    """Number of devices in a deployment."""
    setting: str
    """Name of the setting that gives the size."""

    def numbers(self, settings: Settings) -> range:
        """Return the numbers of a deployment."""
        return range(self.first, self.first + self.size(settings))


FAMILIES = {
    field: InstanceFamily(word, first, attrgetter(setting), f"`{setting}` ({VARIABLE_OF[setting]})")
    for field, (word, first, setting) in names.FAMILIES.items()
}
"""By the name of the template field."""


def devices_of(device_class: DeviceClass | Executor, settings: Settings) -> dict[str, list[str]]:
    """Return the device names of a class by device-server instance; the numbers of a rack share one ``{rack}``."""
    name = device_class.family
    family = FAMILIES.get(name, InstanceFamily("", 0, lambda _: 1, ""))
    found: dict[str, list[str]] = {}
    for number in family.numbers(settings):
        instance = device_class.instance.format(rack=number // settings.rack_size)
        found.setdefault(instance, []).append(device_class.device.format(**{name: number}))
    return found


def classes_of(icd: Icd, settings: Settings, names: Iterable[str]) -> dict[str, str]:
    """Return the class, or executor, of each of their devices in a deployment."""
    return {
        device: name
        for name in names
        for devices in devices_of(icd.commanded[name], settings).values()
        for device in devices
    }


def number_of(device_class: DeviceClass, device: str) -> int | None:
    """Return the number in a device's name; None if the name does not fit."""
    found = re.fullmatch(pattern_of(device_class.device), device, re.IGNORECASE)
    return int(found[1]) if found and found.groups() else None


def device_number(device_class: DeviceClass, device: str, settings: Settings) -> int:
    """Return the number in a device's name, which must be part of the deployment.

    Raises
    ------
    ConfigError
        The name has no number, or the deployment has no device of that number.
    """
    number, family = number_of(device_class, device), FAMILIES[device_class.family]
    if number is None:
        raise ConfigError(f"device {device}: expected the number of the {family.word}, as in {device_class.device}")
    known = family.numbers(settings)
    if number not in known:
        raise ConfigError(
            f"device {device}: {family.word} {number} is not part of this deployment, which has {known.start} to"
            f" {known.stop - 1}; raise the setting {family.setting}, or see what `{PROGRAM} register --prune` removes"
        )
    return number


def pattern_of(template: str) -> str:
    """Return a regular expression for the names of a template."""
    text = ""
    at = 0
    for field in _FIELD.finditer(template):
        text += re.escape(template[at : field.start()]) + rf"(\d{{{field[2] or 1},}})"
        at = field.end()
    return text + re.escape(template[at:])


def registration(icd: Icd, settings: Settings) -> dict[str, Any]:
    """Return all servers, classes and devices in dsconfig's form, with the texts that Jive shows of a class."""
    server: dict[str, dict[str, dict[str, dict[str, Any]]]] = {}
    for name, device_class in icd.classes.items():
        for instance, devices in devices_of(device_class, settings).items():
            named = instance_of(icd.telescope, instance)
            server.setdefault(named, {})[name] = {device: {} for device in devices}
    about = {
        name: {"properties": {"ProjectTitle": [DISTRIBUTION], "Description": [device_class.description]}}
        for name, device_class in icd.classes.items()
    }
    return {"servers": {SERVER: server}, "classes": about}


def instances(icd: Icd, settings: Settings) -> list[str]:
    """Return the device-server instances of the deployment."""
    return sorted(registration(icd, settings)["servers"][SERVER])

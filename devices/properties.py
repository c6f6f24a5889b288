"""Properties of the deployment's devices in several Tango databases: what differs, and a copy.

Operators set properties, such as the limits of an attribute, in the one database that their tool uses. Servers read
them at their start, from the database that they use, so all databases should have the same ones.
"""

from collections.abc import Sequence
from typing import NamedTuple

import tango

from devices.kernel.databases import open_database
from facade.kernel.errors import InfraError


class Property(NamedTuple):
    """The name of a property."""

    device: str
    attribute: str
    """Empty: it is one of the device itself."""
    name: str

    def __str__(self) -> str:
        return f"{'/'.join(filter(None, (self.device, self.attribute)))} {self.name}"


Properties = dict[Property, tuple[str, ...]]
"""Values of each property, in Tango's order."""

_QUERIES = (
    "SELECT device, attribute, name, value FROM property_attribute_device WHERE device LIKE '{}/%'"
    " ORDER BY device, attribute, name, count",
    "SELECT device, '', name, value FROM property_device WHERE device LIKE '{}/%' ORDER BY device, name, count",
)


def read_properties(tango_host: str, domain: str) -> Properties:
    """Return the properties of all devices of a domain.

    Raises
    ------
    InfraError
        The database does not answer or refuses; as by `copy_properties`.
    """
    found: dict[Property, list[str]] = {}
    try:
        for query in _QUERIES:
            numbers, texts = open_database(tango_host).command_inout("DbMySqlSelect", query.format(domain))
            width = int(numbers[-1])
            for at in range(0, len(texts), width):
                device, attribute, name, value = texts[at : at + width]
                found.setdefault(Property(device.lower(), attribute.lower(), name.lower()), []).append(value)
    except tango.DevFailed as failed:
        raise _refused(failed, tango_host) from failed
    return {key: tuple(values) for key, values in found.items()}


def differing(known: dict[str, Properties]) -> list[str]:
    """Return a line for each property that the databases do not share; `known`: the properties by database."""
    names = sorted({key for properties in known.values() for key in properties})
    lines = []
    for key in names:
        values = {host: properties.get(key) for host, properties in known.items()}
        if len({*values.values()}) > 1:
            told = (f"{', '.join(value) if value else 'none'} at {host}" for host, value in values.items())
            lines.append(f"{key}: {'; '.join(told)}")
    return lines


def copy_properties(source: Properties, target: Properties, tango_host: str) -> int:
    """Give a database the properties of another one, and remove those that the other one lacks.

    Returns
    -------
    int
        Number of changes.

    Raises
    ------
    InfraError
        The database does not answer or refuses.
    """
    changes = [key for key in source | target if source.get(key) != target.get(key)]
    try:
        database = open_database(tango_host)
        for key in changes:
            device, attribute, name = key
            values: Sequence[str] = source.get(key, ())
            if attribute and values:
                database.put_device_attribute_property(device, {attribute: {name: list(values)}})
            elif attribute:
                database.delete_device_attribute_property(device, {attribute: [name]})
            elif values:
                database.put_device_property(device, {name: list(values)})
            else:
                database.delete_device_property(device, [name])
    except tango.DevFailed as failed:
        raise _refused(failed, tango_host) from failed
    return len(changes)


def _refused(failed: tango.DevFailed, tango_host: str) -> InfraError:
    return InfraError(
        f"properties cannot be read or set: expected a Tango database at {tango_host}, got: {failed.args[0].desc}"
    )

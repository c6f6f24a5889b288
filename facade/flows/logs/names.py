"""The shippers' metrics that the attributes of SdpLogs show."""

from collections.abc import Mapping
from typing import Final, NamedTuple


class _Shown(NamedTuple):
    """A metric of a node by its name in the ICD, with its names in the shippers' formats."""

    attribute: str
    collectd: tuple[tuple[str, str, str], ...]
    """Plugin, type and type instance; an empty instance: any, and it identifies a sensor."""
    otlp: tuple[tuple[str, str, float], ...]
    """Name, ``state`` (empty: any), and the factor to the attribute's unit."""


SHOWN: Final = (
    _Shown(
        "nodeTemperature",
        (("sensors", "temperature", ""), ("thermal", "temperature", ""), ("ipmi", "temperature", "")),
        (("hw.temperature", "", 1.0),),
    ),
    _Shown(
        "nodeDiskUsed",
        (("df", "percent_bytes", "used"),),
        (("system.filesystem.utilization", "used", 100.0),),
    ),
    _Shown(
        "nodeMemoryUsed",
        (("memory", "percent", "used"),),
        (("system.memory.utilization", "used", 100.0),),
    ),
    _Shown(
        "nodeLoad",
        (("load", "load", ""),),
        (("system.cpu.load_average.1m", "", 1.0),),
    ),
)
ATTRIBUTES: Final = tuple(one.attribute for one in SHOWN)
_COLLECTD: Final = {name: one.attribute for one in SHOWN for name in one.collectd}
_OTLP: Final = {(name, state): (one.attribute, factor) for one in SHOWN for name, state, factor in one.otlp}
_INSTANCES: Final = ("mountpoint", "device", "hw.id", "id", "name")
"""Attributes of OTLP's points that identify a disk or sensor."""


def of_collectd(plugin: str, plugin_instance: str, kind: str, kind_instance: str) -> tuple[str, str]:
    """Return the attribute for a metric of collectd (empty text: none), and its disk or sensor."""
    if shown := _COLLECTD.get((plugin, kind, kind_instance)):
        return shown, plugin_instance
    shown = _COLLECTD.get((plugin, kind, ""), "")
    return shown, "/".join(part for part in (plugin_instance, kind_instance) if part)


def of_otlp(name: str, labels: Mapping[str, str]) -> tuple[str, float, str]:
    """Return the attribute for a metric (empty text: none), the factor to its unit, and its disk or sensor."""
    shown, factor = _OTLP.get((name, labels.get("state", ""))) or _OTLP.get((name, "")) or ("", 1.0)
    return shown, factor, next((labels[one] for one in _INSTANCES if labels.get(one)), "")

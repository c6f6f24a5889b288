"""The shippers' metrics that the attributes of SdpLogs show."""

from collections.abc import Mapping
from typing import Final

ATTRIBUTES: Final = "nodeTemperature", "nodeDiskUsed", "nodeMemoryUsed", "nodeLoad"
_TEMPERATURE, _DISK, _MEMORY, _LOAD = ATTRIBUTES
_COLLECTD: Final = {
    ("sensors", "temperature", ""): _TEMPERATURE,
    ("thermal", "temperature", ""): _TEMPERATURE,
    ("ipmi", "temperature", ""): _TEMPERATURE,
    ("df", "percent_bytes", "used"): _DISK,
    ("memory", "percent", "used"): _MEMORY,
    ("load", "load", ""): _LOAD,
}
"""By plugin, type and type instance; an empty instance: any, and it identifies a sensor."""
_OTLP: Final = {
    ("hw.temperature", ""): (_TEMPERATURE, 1.0),
    ("system.filesystem.utilization", "used"): (_DISK, 100.0),
    ("system.memory.utilization", "used"): (_MEMORY, 100.0),
    ("system.cpu.load_average.1m", ""): (_LOAD, 1.0),
}
"""With the factor to the attribute's unit, by name and ``state`` (empty: any)."""
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

"""A taurus session without Qt: reads, writes and listens as its models do; prints one line of JSON.

Its input is JSON: attributes to `read`, those of them that are to be `valid`, one to `write` with the values to write
one after another, and attributes to `listen` to until each has told of so many changes.
"""

import json
import sys
import threading
import time
from typing import Any

import taurus
from taurus.core import DataFormat, TaurusEventType

HANG = 120.0
"""After so long nothing will come any more, on a machine of any speed [s]."""
MODELS: dict[str, Any] = {}
"""Kept, as a form does: taurus unsubscribes a model that nobody holds, and may crash when an event of it comes then."""


def model(name: str) -> Any:
    if name not in MODELS:
        MODELS[name] = taurus.Device(name) if name.count("/") == 2 else taurus.Attribute(name)
    return MODELS[name]


def state(name: str) -> str:
    """Return the state of a device when it is Ready: one that stood still for 3 s is UNKNOWN for a moment."""
    device, end = model(name), time.monotonic() + HANG
    while device.state.name != "Ready" and time.monotonic() < end:
        time.sleep(0.05)
    return str(device.state.name)


def content(name: str, *, valid: bool = False) -> dict[str, Any]:
    attribute, end = model(name), time.monotonic() + HANG
    found = attribute.read(cache=False)
    while valid and found.quality.name == "ATTR_INVALID" and time.monotonic() < end:
        time.sleep(0.05)
        found = attribute.read(cache=False)
    value = found.rvalue
    units = str(value.units) if hasattr(value, "units") else None
    value = getattr(value, "magnitude", value)
    return {
        "label": attribute.getLabel(),
        "shape": DataFormat.whatis(attribute.data_format),
        "value": value.tolist()
        if hasattr(value, "tolist")
        else value
        if isinstance(value, int | float)
        else str(value),
        "units": units,
        "quality": found.quality.name,
    }


def write(name: str, value: int) -> dict[str, Any]:
    attribute = model(name)
    try:
        attribute.write(value)
    except Exception as failed:
        return {"failed": str(failed)}
    return content(name)


def listen(names: dict[str, int]) -> dict[str, int]:
    counts, enough, listeners = dict.fromkeys(names, 0), threading.Event(), []
    for name in names:

        def on_event(_source: object, kind: int, value: Any, name: str = name) -> None:
            if kind in (TaurusEventType.Change, TaurusEventType.Periodic) and value is not None:
                counts[name] += 1
            if all(counts[one] >= wanted for one, wanted in names.items()):
                enough.set()

        listeners.append(on_event)  # taurus keeps no strong reference
        model(name).addListener(on_event)
    enough.wait(HANG)
    return counts


def main() -> None:
    wanted = json.load(sys.stdin)
    name, values = wanted["write"]
    found = {
        "devices": {one: state(one) for one in wanted["devices"]},
        "read": {one: content(one, valid=one in wanted["valid"]) for one in wanted["read"]},
        "write": [write(name, value) for value in values],
        "listen": listen(wanted["listen"]),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()

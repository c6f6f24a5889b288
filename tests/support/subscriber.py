"""A Tango client of its own: plain PyTango, nothing of ours; subscribes to everything and writes down what comes.

Run as a program: ``python subscriber.py FILE DEVICE...`` with TANGO_HOST set. One JSON line per
event: time of arrival, kind of event, device, attribute, value, quality, time of the data, error.
"""

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import tango

KINDS = {
    "change": tango.EventType.CHANGE_EVENT,
    "archive": tango.EventType.ARCHIVE_EVENT,
    "alarm": tango.EventType.ALARM_EVENT,
}
CALL = 60_000
"""After so long a Tango call has hung; a busy machine may take more than Tango's own 3 s [ms]."""


def main() -> None:
    path, *devices = sys.argv[1:]
    lock = threading.Lock()
    with Path(path).open("w", buffering=1) as file:
        proxies = [tango.DeviceProxy(device) for device in devices]
        for proxy in proxies:
            proxy.set_timeout_millis(CALL)
        for device, proxy in zip(devices, proxies, strict=True):
            for attribute in proxy.get_attribute_list():
                if proxy.get_attribute_config(attribute).data_format == tango.AttrDataFormat.IMAGE:
                    subscribe_image(proxy, device, attribute, file, lock)
                    continue
                for kind, event_type in KINDS.items():
                    if (kind, attribute) == ("alarm", "Status"):
                        continue

                    def on_event(event: Any, kind: str = kind, device: str = device, name: str = attribute) -> None:
                        line = [time.time(), kind, device, name, *_content(event)]
                        with lock:
                            file.write(json.dumps(line) + "\n")

                    subscribe(proxy, attribute, event_type, on_event)
        print("subscribed", flush=True)
        threading.Event().wait()


def subscribe(proxy: Any, attribute: str, kind: Any, take: Any) -> None:
    """Subscribe to a server that may stand still: Tango's own calls for it last 3 s, which nobody can change."""
    while True:
        try:
            proxy.subscribe_event(attribute, kind, take)
        except tango.DevFailed as failed:
            if not any(one.reason == "API_DeviceTimedOut" for one in failed.args):
                raise
        else:
            return


def subscribe_image(proxy: Any, device: str, attribute: str, file: Any, lock: threading.Lock) -> None:
    """Read an image each time that it is said to be ready."""

    def on_ready(event: Any) -> None:
        if event.err:
            return
        try:
            found = proxy.read_attribute(attribute)
        except tango.DevFailed as failed:  # the server has ended meanwhile
            content = [None, None, None, failed.args[0].reason]
        else:
            value = None if found.value is None else found.value.tolist()
            content = [value, str(found.quality).removeprefix("ATTR_"), found.time.totime(), None]
        with lock:
            file.write(json.dumps([time.time(), "ready", device, attribute, *content]) + "\n")

    subscribe(proxy, attribute, tango.EventType.DATA_READY_EVENT, on_ready)


def _content(event: Any) -> list[Any]:
    if event.err:
        return [None, None, None, event.errors[0].reason]
    found = event.attr_value
    value = found.value
    if hasattr(value, "tolist"):
        value = value.tolist()
    elif isinstance(value, tango.DevState):
        value = str(value)
    return [value, str(found.quality).removeprefix("ATTR_"), found.time.totime(), None]


if __name__ == "__main__":
    main()

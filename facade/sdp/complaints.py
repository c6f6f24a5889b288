"""Complaints of a device server about its devices, derived from the values that they show."""

from collections.abc import Callable, Mapping, Sequence

from facade.kernel.instances import number_of
from facade.kernel.reading import Quality, Reading
from facade.kernel.runtime.composition import Server
from facade.kernel.runtime.health_issues import DEGRADED, FAILED
from facade.kernel.runtime.heartbeats import LONGEST_TEXT
from facade.sdp import messages
from facade.sdp.device_state import OBS_STATE

_UNWELL = (DEGRADED, FAILED)
_ALARMED = ("ALARM", "FAULT")


def complain(server: Server) -> None:
    """Let the heartbeats of a device server tell the problems of its devices."""
    server.complaints.append(lambda: complaints_of(server.publisher.last, lambda device: _scope(server, device)))


def _scope(server: Server, device: str) -> str:
    """Return the subarray that must scan for a problem of a device to count; see `complaints_of`."""
    entry = server.icd.classes[server.classes[device]]
    if entry.complains == "always":
        return ""
    number = number_of(entry, device)
    subarrays = (
        one.device for one in server.icd.classes.values() if any(known.name == OBS_STATE for known in one.attributes)
    )
    return next(subarrays).format(subarray=number)


def complaints_of(
    shown: Mapping[str, Mapping[str, Reading]], scope: Callable[[str], str] = lambda device: ""
) -> list[messages.DeviceComplaint]:
    """Return the problems of devices, by their readings.

    Parameters
    ----------
    shown
        Readings by device and attribute.
    scope
        Returns the subarray that must scan for a problem of a device to count; empty: it always counts.
    """
    found = []
    for device, readings in shown.items():
        reasons: Sequence[object] = ()
        health, state = (str(readings[name].value) if name in readings else "" for name in ("healthState", "State"))
        if health in _UNWELL:
            reasons = _lines(readings, "healthInfo")
            text = f"health is {health}: {'; '.join(map(str, reasons))}"
        elif not health and state in _ALARMED:
            # The first line is the state.
            text = f"state is {state}: {' '.join(str(readings['Status'].value).splitlines()[1:])}"
        elif beyond := [name for name, one in readings.items() if one.quality is Quality.ALARM]:
            text = f"alarm limits are reached: {', '.join(beyond)}"
        else:
            continue
        found.append(
            messages.DeviceComplaint(
                device=device,
                text=text[:LONGEST_TEXT],
                subarray=scope(device),
                reasons=[str(reason)[:LONGEST_TEXT] for reason in reasons],
            )
        )
    return found


def _lines(readings: Mapping[str, Reading], name: str) -> Sequence[object]:
    value = readings[name].value if name in readings else ()
    return value if isinstance(value, tuple) else (value,)

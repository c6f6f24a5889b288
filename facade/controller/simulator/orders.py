"""The orders of the simulated controllers: SDP as a whole commands its subarrays, and these their processing."""

from facade.controller import Call

SUBARRAY, MASTER = "SdpSubarray", "SdpMaster"
PROCESSING, WORKER = "ProcessingController", "ProcessingWorker"
ORDERED = (SUBARRAY, PROCESSING, WORKER)
"""What orders are given to."""

_CASCADE = {"On": ("On", "ON"), "Off": ("Off", "OFF"), "Standby": ("Off", "OFF")}
"""Per command of SDP as a whole: the command of a subarray, and the State of one that needs none."""
_BELOW = {"Configure": (PROCESSING, "Prepare"), "Prepare": (WORKER, "Load")}


def go_on(call: Call, device_class: str) -> None:
    """Give the orders that a command leads to, and wait until all are followed.

    On, Off and Standby of SDP as a whole go on to the subarrays that are not there yet: Standby switches them off, as
    they have no such state. Configure goes on to the processing controller of the subarray, and from there to its
    worker.

    Parameters
    ----------
    device_class
        Device class or executor of the command's device.

    Raises
    ------
    NotFollowed
        Says which did not follow, and why.
    Cancelled
        The command was aborted; its orders are as well.
    """
    if device_class == MASTER and call.command in _CASCADE:
        command, state = _CASCADE[call.command]
        behind = [device for device in call.ordered(SUBARRAY) if call.reported_of(device, "State") != state]
        call.follow(call.orders(*((device, command, None) for device in behind)))
    elif device_class != MASTER and call.command in _BELOW:
        executor, command = _BELOW[call.command]
        number = call.device.rpartition("/")[2]
        wanted = [device for device in call.ordered(executor) if device.rpartition("/")[2] == number]
        argument = {"scan_type": call.argument["scan_type"]}
        call.follow(call.orders(*((device, command, argument) for device in wanted)))

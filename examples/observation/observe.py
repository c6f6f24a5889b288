"""Run an observation on a subarray, with the arguments in the JSON files of this folder: ``python observe.py``."""

import json
import queue
import sys
import time
from pathlib import Path

import tango

subarray = tango.DeviceProxy(sys.argv[1] if sys.argv[1:] else "mid-sdp/subarray/01")
results = queue.Queue()


def on_result(event):
    if not event.err and event.attr_value.value:
        results.put(tuple(event.attr_value.value))


def give(command):
    """Give a command, with the argument in its file if it has one, and wait until it has ended."""
    file, argument = Path(__file__).with_name(f"{command}.json"), []
    if file.exists():
        transaction = {"transaction_id": time.strftime(f"txn-tm-%Y%m%d-{time.time_ns()}")}
        argument = [json.dumps(json.loads(file.read_text()) | transaction)]
    _, (command_id,) = subarray.command_inout(command, *argument)  # tango.DevFailed: refused, and args[0].desc says why
    found = ("", "")
    while found[0] != command_id:
        found = results.get(timeout=120)
    result, text = json.loads(found[1])
    print(f"{command}: {text}, obsState {subarray.obsState.name}")
    if result != 0:
        sys.exit(1)


subarray.subscribe_event("longRunningCommandResult", tango.EventType.CHANGE_EVENT, on_result)
if subarray.State() == tango.DevState.OFF:
    give("On")
for command in ("AssignResources", "Configure", "Scan"):
    give(command)
time.sleep(5)  # the scan
for command in ("EndScan", "End", "ReleaseResources", "ReleaseAllResources"):
    give(command)

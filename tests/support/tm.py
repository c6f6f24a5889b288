"""TM's own software, as somebody else would write it: plain PyTango, and nothing but SKA's names, states and schemas.

Run as a program with TANGO_HOST set: ``python tm.py``. It drives an observation on mid-sdp/subarray/01, tries
whatever has to be refused, leaves the subarray in IDLE, and prints one JSON line for each thing that it has checked:
what, well or not, and what was found. Completion is judged by the change events of obsState.
``python tm.py interrupt`` goes on from there, with a controller that never ends Configure and AssignResources.
"""

import contextlib
import itertools
import json
import sys
import threading
import time

import tango

HANG = 120.0
"""After so long nothing will come any more, on a machine of any speed [s]."""

SUBARRAY, CONTROLLER = "mid-sdp/subarray/01", "mid-sdp/control/0"
ONLINE, ENGINEERING = 0, 2  # AdminMode
OBS_STATES = "EMPTY RESOURCING IDLE CONFIGURING READY SCANNING ABORTING ABORTED RESETTING FAULT RESTARTING".split()
SHOWN = ("obsState", "State", "scanID", "scanType", "receiveAddresses")
LRC = ("longRunningCommandIDsInQueue", "longRunningCommandResult")
QUEUED, OK, ABORTED = 2, 0, 7  # ResultCode
NOT_ALLOWED, FAILED = "API_CommandNotAllowed", "API_CommandFailed"

SCHEMA = "https://schema.skao.int/ska-sdp-{}/0.4"
ASSIGN = {
    "interface": SCHEMA.format("assignres"),
    "resources": {"receptors": ["SKA001", "SKA036"]},
    "execution_block": {
        "eb_id": "eb-mvp01-20261121-00000",
        "max_length": 100.0,
        "context": {},
        "beams": [{"beam_id": "vis0", "function": "visibilities"}],
        "scan_types": [
            {
                "scan_type_id": ".default",
                "beams": {"vis0": {"channels_id": "vis_channels", "polarisations_id": "all"}},
            },
            {"scan_type_id": "target:a", "derive_from": ".default", "beams": {"vis0": {"field_id": "field_a"}}},
        ],
        "channels": [
            {
                "channels_id": "vis_channels",
                "spectral_windows": [
                    {
                        "spectral_window_id": "fsp_1_channels",
                        "count": 744,
                        "start": 0,
                        "stride": 2,
                        "freq_min": 0.35e9,
                        "freq_max": 0.368e9,
                        "link_map": [[0, 0], [200, 1]],
                    }
                ],
            }
        ],
        "polarisations": [{"polarisations_id": "all", "corr_type": ["XX", "XY", "YY", "YX"]}],
        "fields": [
            {
                "field_id": "field_a",
                "phase_dir": {
                    "ra": [123, 0.1],
                    "dec": [80, 0.1],
                    "reference_time": "2023-02-16T01:23:45.678900",
                    "reference_frame": "ICRF3",
                },
                "pointing_fqdn": "low-tmc/telstate/0/pointing",
            }
        ],
    },
    "processing_blocks": [
        {
            "pb_id": "pb-mvp01-20261121-00000",
            "script": {"kind": "realtime", "name": "vis-receive", "version": "0.6.0"},
            "parameters": {},
        }
    ],
}
RELEASE = {"interface": SCHEMA.format("releaseres"), "resources": {"receptors": ["SKA036"]}}
CONFIGURE = {"interface": SCHEMA.format("configure"), "scan_type": "target:a"}
SCAN = {"interface": SCHEMA.format("scan"), "scan_id": 17}
ARGUMENTS = {"AssignResources": ASSIGN, "ReleaseResources": RELEASE, "Configure": CONFIGURE, "Scan": SCAN}


def goes_along(values, path):
    """Return whether values came in the order of a path, to its end.

    A device server that stood still reads the reports of both states at once, and shows the later one. Transitional
    states that last are seen in `interrupting`.
    """
    left = iter(path)
    return values[-1:] == path[-1:] and all(value in left for value in values)


def say(check, ok, found):
    print(json.dumps({"check": check, "ok": bool(ok), "found": found}, default=str), flush=True)


class Device:
    """A device, the values that its events have brought, and calls."""

    def __init__(self, name, events):
        self.proxy = tango.DeviceProxy(name)
        self.proxy.set_timeout_millis(round(HANG * 1000))
        self.changed = threading.Condition()
        self.values = {event: [] for event in (*events, "adminMode")}
        for event in self.values:
            self.subscribe(event)
        self.await_connection()

    def subscribe(self, name):
        """Subscribe to a server that may stand still: Tango's own calls for it last 3 s, which nobody can change."""
        while True:
            try:
                return self.proxy.subscribe_event(name, tango.EventType.CHANGE_EVENT, self.taker(name))
            except tango.DevFailed as failed:
                if not any(one.reason == "API_DeviceTimedOut" for one in failed.args):
                    raise

    def await_connection(self):
        """Set adminMode to and fro until an event says so.

        Tango subscribes in the order of the calls, but on a connection that is made behind them: what is sent before is
        lost.
        """
        end = time.monotonic() + HANG
        modes = itertools.cycle((ENGINEERING, ONLINE))
        while ENGINEERING not in self.values["adminMode"] and time.monotonic() < end:
            with contextlib.suppress(tango.DevFailed):  # heartbeats of a server on a busy machine are late
                self.proxy.adminMode = next(modes)
            with self.changed:
                self.changed.wait_for(lambda: ENGINEERING in self.values["adminMode"], 0.25)
        self.proxy.adminMode = ONLINE
        self.wait(lambda: self.values["adminMode"][-1:] == [ONLINE])

    def taker(self, name):
        def take(event):
            if event.err:
                return
            value = event.attr_value.value
            if name == "obsState":
                value = OBS_STATES[value]
            elif name == "State":
                value = str(value)
            elif isinstance(value, tuple) or value is None:
                value = list(value or ())
            with self.changed:
                if self.values[name][-1:] != [value]:
                    self.values[name].append(value)
                    self.changed.notify_all()

        return take

    def wait(self, condition):
        with self.changed:
            return self.changed.wait_for(condition, HANG)

    def shows_under_way(self, name):
        """Return whether the command is the only one that is queued or executing, and what is.

        Attributes are read one after the other, and obsState may be shown first: the queue is read before what has left
        it, and both are read again until there is something.
        """
        end = time.monotonic() + HANG
        names = []
        while not names and time.monotonic() < end:
            texts = self.proxy.lrcQueue or self.proxy.lrcExecuting or ()
            names = [json.loads(text)["name"] for text in texts]
            time.sleep(0.05)
        return names == [name], names

    def call(self, name, argument=None):
        """Return [code, id] or the error."""
        text = argument if argument is None or isinstance(argument, str) else json.dumps(argument)
        try:
            codes, ids = self.proxy.command_inout(name, *([] if text is None else [text]))
            return [int(codes[0]), ids[0]]
        except tango.DevFailed as failed:
            return failed.args[0]

    def picture(self):
        return {one.name: str(one.value) for one in self.proxy.read_attributes(list(self.values))}

    def goes(self, check, attribute, name, argument, path, code=OK):
        """Return a command, and see the values through which an attribute goes; gives the command's id."""
        mark = len(self.values[attribute])

        def passed():
            return self.values[attribute][mark:]

        found = self.call(name, argument)
        if not isinstance(found, list):
            say(check, False, found.desc)
            return ""
        self.wait(lambda: passed()[-1:] == path[-1:])
        say(check, found[0] == QUEUED and goes_along(passed(), path), passed())
        if code is not None:
            self.ends(f"{check}: result", found[1], code)
        return found[1]

    def ends(self, check, id, code):
        """See the result that an event brings."""

        def results():
            return [
                json.loads(text) for one in self.values["longRunningCommandResult"] for text in one[1:] if id in one
            ]

        self.wait(results)
        say(check, [result[0] for result in results()] == [code], results())

    def was_ended(self, check, id):
        """See the result of a command that an Abort has ended: of two at once the newer one may be the only event."""
        end = time.monotonic() + HANG
        results = []
        while not results and time.monotonic() < end:
            finished = map(json.loads, self.proxy.lrcFinished or ())
            results = [[one["status"], one["result"][0]] for one in finished if one["uid"] == id]
            time.sleep(0.05)
        say(check, results == [["ABORTED", ABORTED]], results)

    def refused(self, check, name, argument, reason, *words):
        """See that a call fails with a reason that says what, and changes nothing."""
        before = self.picture()
        error = self.call(name, argument)
        if isinstance(error, list):
            say(check, False, error)
            return
        missing = [word for word in words if word not in error.desc]
        changes = {name: value for name, value in self.picture().items() if value != before[name]}
        say(check, error.reason == reason and not (missing or changes), [error.reason, error.desc, missing, changes])


class Subarray(Device):
    """A subarray, judged by its obsState."""

    def __init__(self):
        super().__init__(SUBARRAY, (*SHOWN, *LRC))
        self.wait(lambda: all(self.values.values()))

    def takes(self, name, *path, argument=None, code=OK):
        argument = ARGUMENTS.get(name) if argument is None else argument
        return self.goes(f"{name} leads to {path[-1]}", "obsState", name, argument, list(path), code)

    def refuses(self, name, *words):
        """See that a command is not allowed now, and that the error says what would be."""
        self.refused(f"{name} is refused: {words}", name, ARGUMENTS.get(name), NOT_ALLOWED, name, *words)

    def has(self, check, name, wanted):
        """See what an attribute shows: a report may come after the outcome, on another partition."""
        end = time.monotonic() + HANG
        while (value := self.proxy.read_attribute(name).value) != wanted and time.monotonic() < end:
            time.sleep(0.05)
        say(check, value == wanted, value)


def switching_on(subarray):
    say("State is OFF at first", subarray.values["State"] == ["OFF"], subarray.values["State"])
    subarray.refuses("AssignResources", "expected State ON, got OFF")
    subarray.goes("On leads to ON", "State", "On", None, ["ON"])
    subarray.refuses("On", "State is ON")


def bad_arguments(subarray):
    """What is wrong with the text of an argument, in a state in which the command is allowed."""
    block = ASSIGN["execution_block"]
    missing = {k: v for k, v in block.items() if k != "eb_id"}
    cases = {
        "not JSON": ("{not json", "JSON"),
        "unknown version": ({**ASSIGN, "interface": SCHEMA.format("assignres")[:-3] + "9.9"}, "$.interface", "9.9"),
        "a missing key": ({**ASSIGN, "execution_block": missing}, "$.execution_block.eb_id"),
        "a scan type twice": (
            {**ASSIGN, "execution_block": {**block, "scan_types": [*block["scan_types"], block["scan_types"][1]]}},
            "scan_types[2].scan_type_id",
            "target:a",
        ),
    }
    for what, (argument, *words) in cases.items():
        subarray.refused(f"AssignResources with {what} is refused", "AssignResources", argument, FAILED, *words)


def assigning(subarray):
    found = subarray.call("AssignResources", ASSIGN)
    subarray.wait(lambda: found[1] in subarray.values["longRunningCommandIDsInQueue"][-1])
    subarray.wait(lambda: subarray.values["obsState"][-1] == "IDLE")
    path = subarray.values["obsState"]
    say("AssignResources leads to IDLE", goes_along(path, ["EMPTY", "RESOURCING", "IDLE"]), path)
    subarray.ends("AssignResources: result", found[1], OK)
    addresses = json.loads(subarray.proxy.receiveAddresses)
    beam = addresses.get("target:a", {}).get("vis0", {})
    well = beam.get("function") == "visibilities" and all(isinstance(beam.get(key), list) for key in ("host", "port"))
    say("receiveAddresses are there in IDLE", well, addresses)
    told = subarray.values["receiveAddresses"]
    say("receiveAddresses came as an event", json.loads(told[-1]) == addresses, told)
    subarray.has("resources", "resources", '{"receptors": ["SKA001", "SKA036"]}')
    subarray.refused("the same execution block again", "AssignResources", ASSIGN, FAILED, "eb_id")
    subarray.refused("a scan type that is not there", "Configure", {**CONFIGURE, "scan_type": "x"}, FAILED, "target:a")


def scanning(subarray):
    transaction = {**SCAN, "transaction_id": "txn-tm-20261121-00001"}
    id = subarray.takes("Scan", "SCANNING", argument=transaction)
    subarray.has("scanID while scanning", "scanID", 17)
    subarray.refuses("Configure", "obsState is SCANNING")
    again = subarray.call("Scan", transaction)
    say("the same transaction_id gives the same command", again == [QUEUED, id], str(again))
    another = {**transaction, "scan_id": 18}
    subarray.refused("a used transaction_id with another argument", "Scan", another, FAILED, "transaction_id", id)
    return id


def observing(subarray):
    """The observation as it should be, and in each state what is not allowed there."""
    subarray.refuses("Configure", "obsState is EMPTY")
    bad_arguments(subarray)
    assigning(subarray)
    subarray.refuses("Scan", "obsState is IDLE")
    subarray.takes("Configure", "CONFIGURING", "READY")
    subarray.has("scanType when configured", "scanType", "target:a")
    subarray.refuses("ReleaseResources", "obsState is READY")
    id = scanning(subarray)
    subarray.takes("EndScan", "READY")
    subarray.has("scanID after the scan", "scanID", 0)
    subarray.takes("Configure", "CONFIGURING", "READY")
    subarray.takes("Scan", "SCANNING", argument={**SCAN, "scan_id": 18})
    subarray.has("scanID in the next scan", "scanID", 18)
    subarray.takes("EndScan", "READY")
    subarray.wait(lambda: subarray.values["scanID"][-1] == 0)
    say("scanID came as events", subarray.values["scanID"] == [0, 17, 0, 18, 0], subarray.values["scanID"])
    subarray.takes("End", "IDLE")
    subarray.has("scanType after the end", "scanType", "null")
    subarray.takes("ReleaseResources", "RESOURCING", "IDLE")
    subarray.has("resources after some were released", "resources", '{"receptors": ["SKA001"]}')
    subarray.takes("ReleaseAllResources", "RESOURCING", "EMPTY")
    subarray.has("receiveAddresses when EMPTY", "receiveAddresses", "null")
    long_running(subarray, id)


def long_running(subarray, id):
    """What the attributes of long-running commands say of one that has ended."""
    names, ids, status = (
        list(subarray.proxy.read_attribute(f"longRunningCommand{name}").value)
        for name in ("sInQueue", "IDsInQueue", "Status")
    )
    say("longRunningCommandsInQueue", names[ids.index(id)] == "Scan" and len(names) == len(ids), names)
    say("longRunningCommandStatus", status[status.index(id) + 1] == "COMPLETED", status)
    finished = [json.loads(text) for text in subarray.proxy.lrcFinished or ()]
    (scan,) = [one for one in finished if one["uid"] == id]
    well = {"name": "Scan", "status": "COMPLETED", "result": [OK, "COMPLETED"]}
    say("lrcFinished", well.items() <= scan.items() and scan["submitted_time"] <= scan["finished_time"], scan)
    for name in ("lrcQueue", "lrcExecuting", "longRunningCommandInProgress", "longRunningCommandProgress"):
        value = list(subarray.proxy.read_attribute(name).value or ())
        say(f"{name} is empty when all is done", value == [], value)
    told = json.loads(subarray.proxy.GetCommand(id))
    acks = [ack["status"] for ack in told["acks"]]
    say("GetCommand", told["status"] == "COMPLETED" and acks == ["ACCEPTED", "COMPLETED"], told)
    newest = json.loads(subarray.proxy.GetCommandHistory(3))
    say("GetCommandHistory", [one["name"] for one in newest][:2] == ["ReleaseAllResources", "ReleaseResources"], newest)


def assignment(number):
    return {**ASSIGN, "execution_block": {**ASSIGN["execution_block"], "eb_id": f"eb-mvp01-20261121-0000{number}"}}


def aborting(subarray):
    subarray.takes("AssignResources", "RESOURCING", "IDLE", argument=assignment(1))
    subarray.takes("Configure", "CONFIGURING", "READY")
    subarray.takes("Scan", "SCANNING")
    subarray.takes("Abort", "ABORTING", "ABORTED")
    subarray.has("scanID after the Abort", "scanID", 0)
    subarray.takes("Restart", "RESTARTING", "EMPTY")
    subarray.has("resources after the Restart", "resources", "{}")


def switching_off(subarray):
    subarray.takes("AssignResources", "RESOURCING", "IDLE", argument=assignment(2))
    subarray.goes("Off leads to OFF", "State", "Off", None, ["OFF"])
    subarray.wait(lambda: subarray.values["obsState"][-1] == "EMPTY")
    say("obsState after Off", subarray.values["obsState"][-1] == "EMPTY", subarray.values["obsState"][-3:])
    subarray.has("receiveAddresses after Off", "receiveAddresses", "null")


def interrupting(subarray):
    """Abort in the middle of commands that end in no other way, and both ways out; it begins in IDLE."""
    configure = subarray.takes("Configure", "CONFIGURING", code=None)
    say("Configure is shown under way", *subarray.shows_under_way("Configure"))
    subarray.takes("Abort", "ABORTING", "ABORTED")
    subarray.was_ended("Abort ends Configure", configure)
    subarray.refuses("Abort", "obsState is ABORTED")
    subarray.takes("ObsReset", "RESETTING", "IDLE")
    subarray.takes("ReleaseAllResources", "RESOURCING", "EMPTY")
    assign = subarray.takes("AssignResources", "RESOURCING", argument=assignment(4), code=None)
    subarray.refuses("Configure", "RESOURCING")
    subarray.takes("Abort", "ABORTING", "ABORTED")
    subarray.was_ended("Abort ends AssignResources", assign)
    subarray.takes("Restart", "RESTARTING", "EMPTY")


def the_controller():
    """On, Standby, Off and Disable of SDP as a whole: each is refused in its own State alone."""
    controller = Device(CONTROLLER, ("State", *LRC))
    targets = {"On": "ON", "Standby": "STANDBY", "Off": "OFF", "Disable": "DISABLE"}
    for name in ("Standby", "Off", "Disable", "On"):
        controller.goes(f"controller: {name}", "State", name, None, [targets[name]])
        words = (name, f"State is {targets[name]}")
        controller.refused(f"controller: {name} twice is refused", name, None, NOT_ALLOWED, *words)


def main():
    subarray = Subarray()
    if sys.argv[1:] == ["interrupt"]:
        interrupting(subarray)
    else:
        for part in (switching_on, observing, aborting, switching_off):
            part(subarray)
        the_controller()
        subarray.goes("On leads to ON again", "State", "On", None, ["ON"])
        subarray.takes("AssignResources", "RESOURCING", "IDLE", argument=assignment(3))
    say("all was checked", True, subarray.values["obsState"])


if __name__ == "__main__":
    sys.exit(main())

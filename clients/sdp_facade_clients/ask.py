"""Calls devices by Tango, with errors that name the remedy: one device, or all of a deployment at once.

`look` answers within some seconds, even if all parts are down. A separate process makes each of its calls: a call to a
frozen server takes nine seconds, and some calls block the other threads of their process.
"""

import json
import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

import tango

from facade.kernel.clock import Clock
from facade.kernel.config import load_settings
from facade.kernel.errors import CommandRefused, FacadeError, InfraError
from facade.kernel.icd.telescope import instance_of
from facade.kernel.names import SERVER
from sdp_facade_clients.events import DeviceEvent, as_event, find_servers
from sdp_facade_clients.status import SERVERS, Seen, devices, questions, see

_REFUSALS = ("API_CommandNotAllowed", "API_AttrNotAllowed", "API_CommandFailed", "API_CommandTimedOut")
"""Tango's error codes of our devices for a refusal."""


def in_name_of(operator: str, command: str, argument: str | None) -> str:
    """Return the argument of GiveCommand."""
    request = {"command": command, "operator": operator}
    return json.dumps(request if argument is None else request | {"argument": argument})


class AskedDevice:
    """One device of a deployment; `server` is the instance that serves it, for the advice to an operator."""

    def __init__(self, tango_host: str, name: str, server: str) -> None:
        self._name, self._server = name, server
        self._proxy = self._ask(lambda: tango.DeviceProxy(f"tango://{tango_host}/{name}"))

    def command(self, name: str, argument: Any = None) -> Any:
        """Call a command.

        Raises
        ------
        CommandRefused
            The device refuses, with a reason; as by each method.
        InfraError
            It does not answer; as by each method.
        """
        return self._ask(lambda: self._proxy.command_inout(name, argument))

    def give(self, name: str, argument: str | None, operator: str) -> str:
        """Give a command in the name of an operator, and return its id."""
        _, (id,) = self.command("GiveCommand", in_name_of(operator, name, argument))
        return str(id)

    def set_mode(self, mode: str, operator: str) -> None:
        """Set adminMode in the name of an operator."""
        self.command("SetAdminMode", json.dumps({"mode": mode, "operator": operator}))

    def write(self, attribute: str, value: Any) -> None:
        """Write an attribute."""
        self._ask(lambda: self._proxy.write_attribute(attribute, value))

    def read(self, *attributes: str) -> dict[str, Any]:
        """Return the values of attributes; None for an attribute without a valid value."""
        found = self._ask(lambda: self._proxy.read_attributes(list(attributes), extract_as=tango.ExtractAs.List))
        return {one.name: None if one.has_failed else one.value for one in found}

    def event(self, attribute: str) -> DeviceEvent:
        """Return the value of an attribute with its quality and time."""
        found = self._ask(lambda: self._proxy.read_attribute(attribute))
        return as_event(found, found.time.totime())

    def _ask(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except tango.DevFailed as failed:
            error = failed.args[0]
            if error.reason in _REFUSALS:
                raise CommandRefused(error.reason, error.desc, error.origin) from failed
            why = error.desc.partition("\n")[0]
            if error.reason == "API_DeviceLocked":
                raise CommandRefused(error.reason, f"{why}; that client has to unlock it", error.origin) from failed
            raise InfraError(
                f"{self._name} does not answer: {why}; start its device server: sdp-facade serve {self._server}"
            ) from failed


WITHIN = 3.0
"""Longest time for all devices together, and for the database before them [s]."""

_UNREGISTERED = InfraError("it is not in the Tango database; see `sdp-facade register`")
Question = Callable[[], Any]


def look(tango_host: str, clock: Clock, health_labels: Sequence[str]) -> Seen:
    """Return the answers of the devices."""
    of_devices = questions()
    found = _all({"": lambda: list(find_servers(tango_host, SERVER))}, clock)[""]
    if isinstance(found, Exception):
        raise InfraError(f"the Tango database at {tango_host!r} does not answer: {found}")
    instances = [name.partition("/")[2] for name in found]
    asked = {f"{SERVER}/{one}": _pinging(f"tango://{tango_host}/dserver/{SERVER}/{one}") for one in instances}
    for name, (device, attributes) in of_devices.items():
        asked[name] = _reading(tango_host, device, attributes)
    asked["alarms"] = lambda: json.loads(AskedDevice(tango_host, devices().alerts, "alerts").command("GetAlarms"))
    said = _all(asked, clock)
    answers, telescope = {name: _or_none(said[name]) for name in of_devices}, load_settings().telescope

    def why(instance: str) -> str:
        error = said.get(f"{SERVER}/{instance_of(telescope, instance)}", _UNREGISTERED)
        return str(error) if isinstance(error, Exception) else ""

    return see(answers, _or_none(said["alarms"]), instances, why, health_labels)


def deployed(tango_host: str, clock: Clock) -> Sequence[str]:
    """Return the device servers that the deployment runs, by SdpMaster; none: it does not say."""
    asked = {"": _reading(tango_host, *questions()["servers"])}
    return (_or_none(_all(asked, clock)[""]) or {}).get(SERVERS) or ()


def _pinging(name: str) -> Question:
    return lambda: tango.DeviceProxy(name).ping()


def _reading(tango_host: str, device: str, attributes: Sequence[str]) -> Question:
    server = "alerts" if device == devices().alerts else "control"

    def read() -> Mapping[str, Any]:
        found = AskedDevice(tango_host, device, server).read(*attributes)
        return found | ({"State": str(found["State"])} if "State" in found else {})

    return read


def _all(asked: Mapping[str, Question], clock: Clock) -> dict[str, Any]:
    """Call all at once; return each result, or the error of a missing answer."""
    forked = multiprocessing.get_context("fork")  # avoids a second import of Tango
    waiting: dict[Any, str] = {}  # by the pipe of the answer
    said: dict[str, Any] = {name: InfraError(f"expected an answer within {WITHIN:g} s, got none") for name in asked}
    processes = []
    for name, question in asked.items():
        end, other_end = forked.Pipe(duplex=False)
        waiting[end] = name
        processes.append(forked.Process(target=_answer, args=(other_end, question), daemon=True))
        processes[-1].start()
        other_end.close()
    until = clock.monotonic() + WITHIN
    while waiting and (ready := wait(list(waiting), max(0.0, until - clock.monotonic()))):
        for one in list[Any](ready):
            name = waiting.pop(one)
            try:
                said[name] = one.recv()
            except EOFError:
                said[name] = InfraError("the process that asked has ended")
    for process in processes:
        process.kill()
        process.join()
    return said


def _answer(end: Connection, question: Question) -> None:
    try:
        end.send(question())
    except tango.DevFailed as failed:
        end.send(InfraError(failed.args[0].desc.partition("\n")[0]))
    except CommandRefused as error:
        end.send(InfraError(str(error)))
    except FacadeError as error:
        end.send(error)


def _or_none(said: Any) -> Any:
    return None if isinstance(said, Exception) else said

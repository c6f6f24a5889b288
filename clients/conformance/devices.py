"""Checks of devices: the database, the server, State events, and the commands and queries that Tango lists."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tango

from clients.conformance.checks import FlowChecks, LiveCheck, Mismatch, NotShown, Subject, demand
from clients.conformance.live_system import KINDS, LiveSystem
from clients.sockets import await_sockets
from facade.icd.model import DeviceClass
from facade.instances import FAMILIES, number_of, pattern_of

_VERSION = "sdpVersion"
"""Attribute with the version of the ICD that a deployment follows."""
_COMMAND_RESULT = "DevVarLongStringArray"
"""[ResultCode], [command id]: the result of SKA's long-running commands."""


# --- The deployment ---


def wanted_devices(system: LiveSystem, device_class: DeviceClass) -> list[str]:
    """Return the devices of a class that the deployment must have."""
    family = device_class.family
    if not family:
        return [device_class.device.lower()]
    first = FAMILIES[family].first
    return [
        device_class.device.format(**{family: number}).lower() for number in range(first, first + _size(system, family))
    ]


def _size(system: LiveSystem, family: str) -> int:
    """Return the size of a family: as an option says, else the largest that a class or SDP itself has."""
    option = {"node": system.options.nodes, "subarray": system.options.subarrays}.get(family)
    if option is not None:
        return option
    numbers = [
        number - FAMILIES[family].first + 1
        for one in system.icd.classes.values()
        if one.family == family
        for device in system.devices[one.name]
        if (number := number_of(one, device)) is not None
    ]
    try:
        name = f"{family}sExpected"
        found = [system.proxy(device).read_attribute(name).value for device in _with(system, name)]
    except tango.DevFailed:  # the checks of the attribute say so
        found = []
    return max([1, *numbers, *(one for one in found if isinstance(one, int))])


def _with(system: LiveSystem, attribute: str) -> list[str]:
    """Return the devices that have an attribute by the ICD."""
    classes = [name for name, one in system.icd.classes.items() if any(a.name == attribute for a in one.attributes)]
    return [device for name in classes for device in system.devices[name]]


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "") if names else "none"


def _in_database(system: LiveSystem, of: Subject) -> str:
    wanted, found = wanted_devices(system, of.entry), system.devices[of.entry.name]
    missing, extra = sorted(set(wanted) - set(found)), sorted(set(found) - set(wanted))
    if missing or extra:
        got = f"missing {_few(missing)}; beyond them {_few(extra)}"
        raise Mismatch(f"{len(wanted)} device(s) as {of.entry.device} in the database", got)
    return f"{len(found)} in the database"


def _instance(system: LiveSystem, of: Subject) -> str:
    servers = set()
    for device in system.devices[of.entry.name]:
        server = str(system.database.get_device_info(device).ds_full_name)
        if not re.fullmatch(pattern_of(of.entry.instance), server.partition("/")[2], re.IGNORECASE):
            raise Mismatch(f"{device} in a server instance {of.entry.instance}", server)
        servers.add(server)
    if not servers:
        raise NotShown("no devices in the database")
    return ", ".join(sorted(servers))


def _exported(system: LiveSystem, of: Subject) -> str:
    if not system.database.get_device_info(of.device).exported:
        raise Mismatch("an exported device", "one that no server has exported")
    return "exported"


def _answers(system: LiveSystem, of: Subject) -> str:
    try:
        _exported(system, of)
    except (Mismatch, tango.DevFailed) as error:
        raise NotShown(f"{of.device} is not exported") from error
    begin = system.clock.monotonic()
    state = system.proxy(of.device).state()
    return f"{state} after {(system.clock.monotonic() - begin) * 1e3:.1f} ms"


def _names(system: LiveSystem, of: Subject) -> str:
    attributes = {entry.name for entry in of.entry.attributes}
    commands = {entry.name for entry in (*of.entry.commands, *of.entry.queries)}
    for what, wanted, found in (
        ("attributes", attributes, system.configs(of.device)),
        ("commands", commands, system.commands(of.device)),
    ):
        if missing := sorted(wanted - set(found)):
            raise Mismatch(f"the {len(wanted)} {what} of {of.entry.name}", f"none called {_few(missing)}")
    return f"{len(attributes)} attributes, {len(commands)} commands"


def _state_events(system: LiveSystem, of: Subject) -> str:
    proxy, kinds = system.proxy(of.device), ("change", "archive", "alarm")
    for kind in kinds:
        await_sockets(system.clock)
        try:
            number = proxy.subscribe_event("State", KINDS[kind], lambda event: None)
        except tango.DevFailed as failed:
            raise Mismatch(f"a subscription to {kind} events of State", str(failed.args[0].desc)) from failed
        proxy.unsubscribe_event(number)
    return ", ".join(kinds)


def _version(system: LiveSystem, _: Subject) -> str:
    devices = _with(system, _VERSION)
    if not devices:
        raise NotShown(f"there is no device with {_VERSION} to ask")
    text = system.proxy(devices[0]).read_attribute(_VERSION).value
    if text is None:
        raise NotShown(f"{_VERSION} is ATTR_INVALID")
    return demand(system.icd.version, json.loads(text).get("icd"))


def _condition(system: LiveSystem, of: Subject) -> str:
    labels = system.icd.enums["AlarmState"]
    demand(list(labels), list(system.config(of.device, of.name).enum_labels))
    trace = system.traces.get((of.device, of.name))
    if trace is None or trace.before.error:
        raise Mismatch("a state of the alarm", trace.before.error if trace else "no value")
    return "INVALID" if trace.before.value is None else labels[trace.before.value]


# --- Commands and queries ---


def _exists(system: LiveSystem, of: Subject) -> str:
    return str(system.command(of.device, of.entry.name).cmd_name)


def _command_types(system: LiveSystem, of: Subject) -> str:
    found = system.command(of.device, of.entry.name)
    argument = "DevVoid" if of.entry.argument is None else "DevString"
    return demand(f"{argument} -> {_COMMAND_RESULT}", f"{found.in_type} -> {found.out_type}")


def _query_types(system: LiveSystem, of: Subject) -> str:
    found = system.command(of.device, of.entry.name)
    return demand(f"{of.entry.argument} -> {of.entry.result}", f"{found.in_type} -> {found.out_type}")


def _query_description(system: LiveSystem, of: Subject) -> str:
    found = system.command(of.device, of.entry.name)
    text = str(found.in_type_desc)
    if of.entry.argument_description or text not in ("", "Uninitialised", "No input parameter (DevVoid)"):
        demand(of.entry.argument_description, text)
    demand(of.entry.result_description, str(found.out_type_desc))
    return "as in the ICD"


def _refusal(system: LiveSystem, of: Subject) -> str:
    """Give an argument that is none: nothing may change, and the refusal must help."""
    system.command(of.device, of.entry.name)
    argument = -(2**31) if of.entry.argument in ("DevLong", "DevLong64") else "{not json"
    try:
        answer = system.proxy(of.device).command_inout(of.entry.name, argument)
    except tango.DevFailed as failed:
        text = str(failed.args[0].desc)
    else:
        raise Mismatch(f"a refusal of {argument!r}", f"the answer {answer!r:.80}")
    if "expected" not in text or not ("got" in text or str(argument) in text):
        raise Mismatch("a refusal with the expected and the given value", text)
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryAnswer:
    """A question that changes nothing, and the form of its answer."""

    argument: Callable[[LiveSystem, str], Any] = lambda system, device: None
    kind: type[dict[str, Any]] | type[list[Any]]
    """JSON object or list."""
    keys: tuple[str, ...] = ()
    """Keys of the object, or of each object in the list."""


def answer_check(wanted: QueryAnswer) -> LiveCheck:
    """Return the check of a query's answer."""

    def judge(system: LiveSystem, of: Subject) -> str:
        system.command(of.device, of.entry.name)
        argument = wanted.argument(system, of.device)
        begin = system.clock.monotonic()
        text = system.proxy(of.device).command_inout(of.entry.name, argument)
        took = system.clock.monotonic() - begin
        return f"{judge_answer(wanted, text)} after {took * 1e3:.1f} ms"

    return LiveCheck("answer", judge)


def judge_answer(wanted: QueryAnswer, text: str) -> str:
    """Judge whether an answer is JSON of the documented form."""
    try:
        found = json.loads(text)
    except ValueError:
        raise Mismatch("JSON", f"{text!r:.80}") from None
    if not isinstance(found, wanted.kind):
        raise Mismatch(f"a JSON {'object' if wanted.kind is dict else 'list'}", f"{text!r:.80}")
    for one in found if isinstance(found, list) else [found]:
        if not isinstance(one, dict) or any(key not in one for key in wanted.keys):
            raise Mismatch(f"objects with the keys {', '.join(wanted.keys)}", f"{json.dumps(one):.120}")
    return f"list of {len(found)}" if isinstance(found, list) else "object"


ICD_CHECKS = (LiveCheck("version", _version),)
CLASS_CHECKS = (LiveCheck("devices", _in_database, asks=False), LiveCheck("instance", _instance, asks=False))
DEVICE_CHECKS = (
    LiveCheck("exported", _exported, asks=False),
    LiveCheck("answers", _answers, asks=False),
    LiveCheck("names", _names),
    LiveCheck("state-events", _state_events),
)
CONDITION_CHECKS = (LiveCheck("state", _condition),)
"""The label and the description of a condition are those of its attribute."""
COMMAND_CHECKS = (LiveCheck("exists", _exists), LiveCheck("types", _command_types))
QUERY_CHECKS = (
    LiveCheck("exists", _exists),
    LiveCheck("types", _query_types),
    LiveCheck("description", _query_description),
    LiveCheck("refusal", _refusal, lambda of: of.entry.argument != "DevVoid"),
)


# --- The archive: orders to a replay, in a deployment that shows none ---

_ORDERS: Mapping[str, Any] = {"Pause": None, "Resume": None, "Step": 1, "Seek": "2027-01-14T18:00"}
"""Queries with an argument."""


def _replay_order(system: LiveSystem, of: Subject) -> str:
    system.command(of.device, of.entry.name)
    proxy = system.proxy(of.device)
    if str(proxy.status()).startswith("REPLAY"):
        raise NotShown("the deployment shows a replay, which is not to be disturbed")
    try:
        answer = proxy.command_inout(of.entry.name, _ORDERS[of.entry.name])
    except tango.DevFailed as failed:
        return str(failed.args[0].desc)
    raise Mismatch("a refusal, as no replay is shown", f"the answer {answer!r:.80}")


ARCHIVE = FlowChecks(
    commands=lambda _, of: [LiveCheck("effect", _replay_order)] if of.device_class.name == "SdpArchive" else []
)


# --- Calibration tables: their queries, and the bytes of one table ---

_TRIES, _PAUSE = 60, 0.3
"""For bytes that the device may not have yet, and the time between two tries [s]."""


def _some_product(system: LiveSystem, device: str) -> str:
    try:
        tables = json.loads(system.proxy(device).ListTables())
    except ValueError:
        raise NotShown("ListTables gives no JSON, so no table is known") from None
    complete = [one for one in tables if one.get("state") == "COMPLETE"]
    if not complete:
        raise NotShown("no table is complete yet")
    return str(complete[0]["product"])


def _table_content(system: LiveSystem, of: Subject) -> str:
    system.command(of.device, of.entry.name)
    proxy = system.proxy(of.device)
    for attempt in range(_TRIES):
        table = json.loads(proxy.GetTable(_some_product(system, of.device)))
        if table["size"] > of.entry.max_bytes:
            raise NotShown(f"the newest table has {table['size']} bytes, which is more than {of.entry.max_bytes}")
        try:
            return judge_content(table, *proxy.command_inout(of.entry.name, table["table"]))
        except tango.DevFailed:
            if attempt == _TRIES - 1:
                raise
            system.clock.sleep(_PAUSE)
    raise AssertionError("unreachable: the last attempt raises or returns")


def judge_content(table: Mapping[str, Any], form: str, content: bytes) -> str:
    """Judge whether bytes are those of a table."""
    demand(table["content_type"], form)
    demand(table["sha256"], hashlib.sha256(content).hexdigest())
    return f"{len(content)} bytes of {form}, with the digest that GetTable gives"


_TABLE_QUERIES = {
    "ListTables": answer_check(QueryAnswer(kind=list, keys=("product", "state"))),
    "GetTable": answer_check(QueryAnswer(argument=_some_product, kind=dict, keys=("product",))),
    "GetTableContent": LiveCheck("content", _table_content),
}
TABLES = FlowChecks(commands=lambda _, of: [one for name, one in _TABLE_QUERIES.items() if name == of.entry.name])

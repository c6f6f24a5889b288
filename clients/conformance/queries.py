"""Whether queries, the commands that a device answers itself, are there and give what the ICD says."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import tango

from clients.conformance.case import Check, QueryOf, demand
from clients.conformance.system import System
from clients.conformance.verdicts import Mismatch, NotShown

_FEW = 5
_TRIES, _PAUSE = 20, 0.3
"""For what the device may not have yet, and the time between two tries [s]."""

Kind = type[dict[str, Any]] | type[list[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """How a query is asked so that nothing changes, and what comes."""

    argument: Callable[[System, str], Any] = lambda system, device: None
    kind: Kind
    """JSON object or list."""
    keys: tuple[str, ...] = ()
    """Keys of the object, or of each object in the list."""


def _newest_command(system: System, device: str) -> str:
    found = json.loads(system.proxy(device).GetCommandHistory(1))
    if not found:
        raise NotShown("no command was given yet")
    return str(found[0]["id"])


def _some_product(system: System, device: str) -> str:
    try:
        tables = json.loads(system.proxy(device).ListTables())
    except ValueError:
        raise NotShown("ListTables gives no JSON, so no table is known") from None
    complete = [one for one in tables if one.get("state") == "COMPLETE"]
    if not complete:
        raise NotShown("no table is complete yet")
    return str(complete[0]["product"])


def _few_alerts_ago(system: System, device: str) -> int:
    return max(int(system.proxy(device).alertSequence or 0) - _FEW, 0)


_COMMAND = ("id", "name", "status")
ASKED: Mapping[str, Asked] = {
    "GetCommand": Asked(argument=_newest_command, kind=dict, keys=(*_COMMAND, "acks")),
    "GetCommandHistory": Asked(argument=lambda *_: _FEW, kind=list, keys=_COMMAND),
    "GetAlertsSince": Asked(argument=_few_alerts_ago, kind=dict, keys=("newest", "entries")),
    "GetAlertHistory": Asked(
        argument=lambda system, _: json.dumps({"condition": next(iter(system.icd.conditions)), "most": _FEW}),
        kind=list,
        keys=("sequence",),
    ),
    "GetAlarms": Asked(kind=list, keys=("condition", "source", "state", "severity", "text", "occurrence")),
    "ListTables": Asked(kind=list, keys=("product", "state")),
    "GetTable": Asked(argument=_some_product, kind=dict, keys=("product",)),
}
"""Queries that change nothing."""
ACTIONS = ("Acknowledge", "Comment", "Shelve", "Unshelve", "Reset", "RemoveFromService", "ReturnToService")
"""Queries by which operators act on an alarm: shown with the test alert only."""
CONTENT = "GetTableContent"
"""Gives bytes, whose digest is known."""
REFRESH = "RefreshAlerts"
"""Sends events to all clients, so it is called with the test alert only."""


def _exists(system: System, of: QueryOf) -> str:
    return str(system.command(of.device, of.entry.name).cmd_name)


def _types(system: System, of: QueryOf) -> str:
    found = system.command(of.device, of.entry.name)
    return demand(f"{of.entry.argument} -> {of.entry.result}", f"{found.in_type} -> {found.out_type}")


def _description(system: System, of: QueryOf) -> str:
    found = system.command(of.device, of.entry.name)
    demand(of.entry.argument_description or _no_description(found.in_type_desc), str(found.in_type_desc))
    demand(of.entry.result_description, str(found.out_type_desc))
    return "as in the ICD"


def _no_description(text: str) -> str:
    """Return what Tango says where nothing was said."""
    return text if text in ("", "Uninitialised", "No input parameter (DevVoid)") else ""


def _answer(system: System, of: QueryOf) -> str:
    system.command(of.device, of.entry.name)
    asked = ASKED[of.entry.name]
    argument = asked.argument(system, of.device)
    begin = system.clock.monotonic()
    text = system.proxy(of.device).command_inout(of.entry.name, argument)
    took = system.clock.monotonic() - begin
    return f"{judge_answer(asked, text)} after {took * 1e3:.1f} ms"


def judge_answer(asked: Asked, text: str) -> str:
    """Judge whether an answer is JSON of the documented kind."""
    try:
        found = json.loads(text)
    except ValueError:
        raise Mismatch("JSON", f"{text!r:.80}") from None
    if not isinstance(found, asked.kind):
        raise Mismatch(f"a JSON {'object' if asked.kind is dict else 'list'}", f"{text!r:.80}")
    for one in found if isinstance(found, list) else [found]:
        if not isinstance(one, dict) or any(key not in one for key in asked.keys):
            raise Mismatch(f"objects with the keys {', '.join(asked.keys)}", f"{json.dumps(one):.120}")
    return f"list of {len(found)}" if isinstance(found, list) else "object"


def _content(system: System, of: QueryOf) -> str:
    """Fetch a table that is small enough, and compare its digest; the newest one may not be at the device yet."""
    system.command(of.device, of.entry.name)
    for attempt in range(_TRIES):
        product = _some_product(system, of.device)
        table = json.loads(system.proxy(of.device).GetTable(product))
        if table["size"] > of.entry.max_bytes:
            raise NotShown(f"the newest table has {table['size']} bytes, which is more than {of.entry.max_bytes}")
        try:
            form, content = system.proxy(of.device).command_inout(of.entry.name, table["table"])
        except tango.DevFailed:
            if attempt == _TRIES - 1:
                raise
            system.clock.sleep(_PAUSE)
        else:
            return judge_content(table, form, content)
    raise AssertionError("unreachable: the last attempt raises or returns")


def judge_content(table: Mapping[str, Any], form: str, content: bytes) -> str:
    """Judge whether bytes are those of a table."""
    demand(table["content_type"], form)
    demand(table["sha256"], hashlib.sha256(content).hexdigest())
    return f"{len(content)} bytes of {form}, with the digest that GetTable gives"


def _refusal(system: System, of: QueryOf) -> str:
    """Ask with what cannot be an argument: nothing may change, and the reason must say what was expected."""
    system.command(of.device, of.entry.name)
    argument = -(2**31) if of.entry.argument in ("DevLong", "DevLong64") else "{not json"
    try:
        answer = system.proxy(of.device).command_inout(of.entry.name, argument)
    except tango.DevFailed as failed:
        text = str(failed.args[0].desc)
    else:
        raise Mismatch(f"a refusal of {argument!r}", f"the answer {answer!r:.80}")
    if "expected" not in text or not ("got" in text or str(argument) in text):
        raise Mismatch("a refusal that says what was expected and what came", text)
    return text


QUERY_CHECKS: tuple[Check[QueryOf], ...] = (
    Check(aspect="exists", claims=("Query.name", "DeviceClass.queries"), judge=_exists),
    Check(aspect="types", claims=("Query.argument", "Query.result"), judge=_types),
    Check(aspect="description", claims=("Query.argument_description", "Query.result_description"), judge=_description),
    Check(aspect="answer", judge=_answer, applies=lambda of: of.entry.name in ASKED),
    Check(
        aspect="content",
        claims=("Query.max_bytes",),
        judge=_content,
        applies=lambda of: of.entry.name == CONTENT,
    ),
    Check(
        aspect="refusal",
        judge=_refusal,
        applies=lambda of: of.entry.argument != "DevVoid" and of.entry.name != "GetAlertsSince",
    ),
)
"""What can be said of a query without changing anything."""

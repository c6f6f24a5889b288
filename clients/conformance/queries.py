"""Whether queries, the commands that a device answers itself, are there and give what the ICD says."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tango

from clients.conformance.case import Check, QueryOf, demand
from clients.conformance.commands import exists
from clients.conformance.system import System
from clients.conformance.verdicts import Mismatch

Kind = type[dict[str, Any]] | type[list[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """How a query is asked so that nothing changes, and what comes."""

    argument: Callable[[System, str], Any] = lambda system, device: None
    kind: Kind
    """JSON object or list."""
    keys: tuple[str, ...] = ()
    """Keys of the object, or of each object in the list."""


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


def answer(asked: Asked) -> Check[QueryOf]:
    """Return the check of what a query answers."""

    def judge(system: System, of: QueryOf) -> str:
        system.command(of.device, of.entry.name)
        argument = asked.argument(system, of.device)
        begin = system.clock.monotonic()
        text = system.proxy(of.device).command_inout(of.entry.name, argument)
        took = system.clock.monotonic() - begin
        return f"{judge_answer(asked, text)} after {took * 1e3:.1f} ms"

    return Check(aspect="answer", judge=judge)


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
    Check(aspect="exists", claims=("Query.name", "DeviceClass.queries"), judge=exists),
    Check(aspect="types", claims=("Query.argument", "Query.result"), judge=_types),
    Check(aspect="description", claims=("Query.argument_description", "Query.result_description"), judge=_description),
    Check(
        aspect="refusal",
        judge=_refusal,
        applies=lambda of: of.entry.argument != "DevVoid",
    ),
)
"""What can be said of any query without changing anything."""

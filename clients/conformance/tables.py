"""What calibration tables add: queries that list and describe them, and their bytes."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import tango

from clients.conformance.case import Check, QueryOf, demand
from clients.conformance.flows import FlowChecks
from clients.conformance.queries import Asked, answer
from clients.conformance.system import System
from clients.conformance.verdicts import NotShown

_TRIES, _PAUSE = 20, 0.3
"""For what the device may not have yet, and the time between two tries [s]."""


def _some_product(system: System, device: str) -> str:
    try:
        tables = json.loads(system.proxy(device).ListTables())
    except ValueError:
        raise NotShown("ListTables gives no JSON, so no table is known") from None
    complete = [one for one in tables if one.get("state") == "COMPLETE"]
    if not complete:
        raise NotShown("no table is complete yet")
    return str(complete[0]["product"])


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


CONTENT: Check[QueryOf] = Check(aspect="content", claims=("Query.max_bytes",), judge=_content)
QUERIES: Mapping[str, Check[QueryOf]] = {
    "ListTables": answer(Asked(kind=list, keys=("product", "state"))),
    "GetTable": answer(Asked(argument=_some_product, kind=dict, keys=("product",))),
    "GetTableContent": CONTENT,
}
CHECKS = FlowChecks(query=lambda _, of: (QUERIES[of.entry.name],) if of.entry.name in QUERIES else (), every=(CONTENT,))

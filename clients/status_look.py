"""Looks at the devices of a deployment, all at once and within some seconds, whatever is down.

Each question is asked by a process of its own: a call of Tango to a frozen server takes nine seconds, in part of
which no other thread of its process can do anything.
"""

import json
import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

import tango

from clients.ask import AskedDevice
from clients.events import open_database
from clients.status import ALERTS, BUS, MASTER, WORKERS, Seen
from facade.clock import Clock
from facade.errors import CommandRefused, FacadeError, InfraError
from facade.exports.tango_db import SERVER

WITHIN = 3.0
"""Longest time for all devices together, and for the database before them [s]."""

Question = Callable[[], Any]


def look(tango_host: str, clock: Clock, health_labels: Sequence[str]) -> Seen:
    """Return what the devices say.

    Raises
    ------
    InfraError
        The Tango database does not answer.
    """
    found = _all({"": lambda: list(open_database(tango_host).get_server_list(f"{SERVER}/*"))}, clock)[""]
    if isinstance(found, Exception):
        raise InfraError(f"the Tango database at {tango_host!r} does not answer: {found}")
    instances = [name.partition("/")[2] for name in found]
    asked = {f"{SERVER}/{one}": _pinging(f"tango://{tango_host}/dserver/{SERVER}/{one}") for one in instances}
    for name, server, attributes in (
        (MASTER, "control", ("State", "healthState", "healthInfo", "healthIssues")),
        (BUS, "control", ("State", "Status")),
        (ALERTS, "alerts", ("State", "Status")),
    ):
        asked[name] = _reading(tango_host, name, server, attributes)
    asked["alarms"] = lambda: json.loads(AskedDevice(tango_host, ALERTS, "alerts").command("GetAlarms"))
    # Apart, as an older server has no such attribute.
    asked["workers"] = _reading(tango_host, BUS, "control", ("State", *WORKERS))
    said = _all(asked, clock)
    master = _or_none(said[MASTER])
    if master is not None and master["healthState"] is not None:
        master["healthState"] = health_labels[master["healthState"]]
    return Seen(
        servers={one: _why(said[f"{SERVER}/{one}"]) for one in instances},
        master=master,
        bus=_or_none(said[BUS]),
        alerts=_or_none(said[ALERTS]),
        alarms=_or_none(said["alarms"]),
        workers=_or_none(said["workers"]),
    )


def _pinging(name: str) -> Question:
    return lambda: tango.DeviceProxy(name).ping()


def _reading(tango_host: str, name: str, server: str, attributes: Sequence[str]) -> Question:
    def read() -> Mapping[str, Any]:
        found = AskedDevice(tango_host, name, server).read(*attributes)
        return found | {"State": str(found["State"])}

    return read


def _all(asked: Mapping[str, Question], clock: Clock) -> dict[str, Any]:
    """Ask all at once; give what each returned, or an error that says why there is no answer."""
    forked = multiprocessing.get_context("fork")  # so that Tango is not imported again
    waiting: dict[Any, str] = {}  # by the end on which the answer comes
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


def _why(said: Any) -> str:
    return str(said) if isinstance(said, Exception) else ""

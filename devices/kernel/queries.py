"""Commands that a device answers by itself, and the common form of refusals."""

import re
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tango
from tango.server import command

from devices.kernel.base import FacadeDevice
from devices.kernel.mapping import Encoded, tango_text, to_encoded
from facade.kernel.errors import CommandRefused, NotSent, OutcomeUnknown
from facade.kernel.icd.model import DeviceClass, Query

_PEER = re.compile(r"giop:tcp:\[?(?:::ffff:)?([^\]]+)\]?:[0-9]+")

_LONGEST_CLIENT = 200
"""Longest name of a client in the records of all topics [characters]."""

FAILED = "API_CommandFailed"
"""Tango's error code for a call that was not carried out."""


def tango_query(entry: Query) -> Callable[..., Any]:
    """Make the Tango command of an ICD query; its body is ``query_<name>``."""

    def call(self: FacadeDevice) -> Any:
        return _carried(getattr(self, f"query_{entry.name}")())

    def call_with(self: FacadeDevice, argument: Any) -> Any:
        return _carried(getattr(self, f"query_{entry.name}")(argument))

    body = call if entry.argument == "DevVoid" else call_with
    body.__name__, body.__doc__ = entry.name, entry.description
    options: dict[str, Any] = {"dtype_out": entry.result, "doc_out": entry.result_description}
    if entry.argument != "DevVoid":
        options |= {"dtype_in": entry.argument, "doc_in": entry.argument_description}
    made: Callable[..., Any] = command(body, **options)
    return made


class QueriedDevice(FacadeDevice):
    """A device that answers by itself, without commands of controllers."""

    @classmethod
    def tango_commands(cls, entry: DeviceClass) -> dict[str, Any]:
        """Make the Tango commands of the class, by name."""
        return {one.name: tango_query(one) for one in entry.queries}


def _carried(result: Any) -> Any:
    if isinstance(result, str):
        return tango_text(result)
    return to_encoded(result) if isinstance(result, Encoded) else result


def client_of(device: FacadeDevice) -> str:
    """Return the client of the present call, such as ``10.0.0.7, process 4242``.

    The text is empty if Tango does not know it, as for clients of Tango 7 and older, and is cut to what records take.
    """
    client = device.get_client_ident()
    if client is None or not client.client_ident:
        return ""
    peer = _PEER.fullmatch(client.client_ip)
    # Without a peer it came by a socket without a network. Standbys serve on several hosts, so the name is told.
    host = peer[1] if peer else f"this host ({socket.gethostname()})"
    if client.client_lang == tango.LockerLanguage.JAVA:
        return f"{host}, Java program {client.java_main_class}"[:_LONGEST_CLIENT]
    return f"{host}, process {client.client_pid}"


@contextmanager
def as_tango(where: str) -> Iterator[None]:
    """Turn a refusal, or a bus that does not answer, into a Tango exception that says whether anything was done."""
    try:
        yield
    except CommandRefused as error:
        raise refusal(error.faults or str(error), error.origin, error.reason) from error
    except NotSent as error:
        raise refusal(str(error), where) from error
    except OutcomeUnknown as error:
        raise refusal(str(error), where, "API_CommandTimedOut") from error


def refusal(what: str | Sequence[str], where: str, reason: str = FAILED) -> tango.DevFailed:
    """Make the exception of a failed Tango call: reason, text with a line for each fault, and origin."""
    text = "\n".join(map(tango_text, [what] if isinstance(what, str) else what))
    try:
        tango.Except.throw_exception(reason, text, where, tango.ErrSeverity.ERR)
    except tango.DevFailed as failed:
        return failed
    raise AssertionError("unreachable: throw_exception raises")

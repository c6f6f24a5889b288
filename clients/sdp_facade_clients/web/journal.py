"""What people do at the operator's page: a line of the log for each act, and the records of the audit."""

import logging
import os
import socket
from collections.abc import Callable
from typing import Final

import msgspec
from starlette.requests import Request

from facade.flows.overview import page_acts
from facade.kernel.clock import Clock
from facade.sdp.messages import PageAct
from sdp_facade_clients.web.doors import Person, RequestRefused

_log = logging.getLogger(__name__)

LONGEST_NOTE: Final = 300
"""Longest text about a request or its result in a line of the log [characters]."""
LONGEST_NAME: Final = 200
"""Longest name of a person, a device or an alarm in the audit [characters]."""
_UNTOLD: Final = ("argument", "model")
"""What a request may have much of: the argument of a command, and a display."""
_encode = msgspec.json.Encoder(enc_hook=str).encode


class Journal:
    """Writes each request, with person, address and result, to the log and to the audit."""

    def __init__(self, keep: Callable[[PageAct], None], clock: Clock) -> None:
        self._keep, self._clock = keep, clock
        self._origin = f"{socket.gethostname()}, process {os.getpid()}"

    def note(self, request: Request, error: Exception | None, answer: str = "") -> None:
        """Note an act, with the error if it was refused."""
        person: Person = request.state.person
        act, address = request.url.path.rpartition("/")[2], request.client.host if request.client else ""
        asked = {name: one for name, one in request.state.asked.items() if name not in _UNTOLD}
        text = _encode(asked).decode()[:LONGEST_NOTE]
        outcome = f"done: {answer}" if error is None else f"refused: {error}"
        _log.log(
            logging.INFO if error is None else logging.WARNING,
            "act=%s name=%r role=%s address=%s asked=%s %.*s",
            act,
            person.name,
            person.role.name.lower() if person.name else "none",
            address,
            text,
            LONGEST_NOTE,
            outcome,
        )
        told = ", ".join(f"{name} {one}" for name, one in asked.items() if name != "device")
        is_trial = act == "redrive" and asked.get("put_back") is not True
        kept = page_acts.KEPT if error is None else page_acts.KEPT_REFUSED
        if isinstance(error, RequestRefused) or (act in kept and not is_trial):
            target = str(asked.get("device") or asked.get("source") or "")
            self._keep(self.act(request, target, told if error is None else str(error), refused=error is not None))

    def act(self, request: Request, target: str, text: str, *, refused: bool = False) -> PageAct:
        """Return the record of an act that a request asks for."""
        return PageAct(
            act=request.url.path.rpartition("/")[2],
            person=request.state.person.name[:LONGEST_NAME],
            address=request.client.host if request.client else "",
            target=target[:LONGEST_NAME],
            text=text[:LONGEST_NOTE],
            refused=refused,
            time=self._clock.now_us(),
            origin=self._origin,
        )

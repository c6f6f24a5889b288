"""Requests of operators: checked against the present alarms, then written to the log.

An action takes effect when it comes back from the log, in its order among the alerts. So it is on the bus before the
operator's call returns, and it survives restarts. Before that, it is written to a topic of its own, which proves that
an operator gave it (`facade.flows.alerts.given`). An action is also checked against actions under way: of two operators
with the same action within these milliseconds, the second one is refused with the name of the first.
"""

import secrets
import threading
from collections.abc import Callable
from itertools import islice
from typing import Annotated

import msgspec

from facade.flows.alerts.flow import AlertsFlow
from facade.flows.alerts.ledger import take
from facade.flows.alerts.messages import Action, ActionKind, Alarm, action_records
from facade.flows.alerts.refusals import LONGEST_SHELVING, refusal
from facade.kernel.bus.port import Record
from facade.kernel.clock import NEVER, SECOND, Clock, as_duration, as_seconds
from facade.kernel.errors import BusError, CommandRefused
from facade.kernel.numbers import Natural
from facade.kernel.outcome import Unused
from facade.kernel.printable import listed
from facade.sdp import alarm_states as states
from facade.sdp.replay import why_refused

MOST_ENTRIES, MOST_BYTES = 1000, 1_000_000
"""Most entries in an answer, and its approximate size."""
_ON_THE_WAY = 5 * SECOND
"""Longest time that an action counts as under way to the log."""
_FAILED, _NOT_ALLOWED = "API_CommandFailed", "API_CommandNotAllowed"


_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class Request(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The JSON argument of an operator's command."""

    condition: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z][A-Za-z0-9_.-]*\Z", max_length=100)]
    operator: _Text
    comment: Annotated[str, msgspec.Meta(max_length=2000)] = ""
    source: _Text | None = None
    """May be left out while only one source has an alarm of the condition."""
    occurrence: Natural | None = None
    """Only for Acknowledge."""
    duration: float | None = None
    """Only for Shelve [s]."""


_WANTED: dict[ActionKind, tuple[str, ...]] = {
    "ACKNOWLEDGE": ("occurrence",),
    "COMMENT": ("comment",),
    "SHELVE": ("duration", "comment"),
    "UNSHELVE": (),
    "RESET": (),
    "REMOVE_FROM_SERVICE": ("comment",),
    "RETURN_TO_SERVICE": (),
}
"""Further keys that an action must have."""
_decode = msgspec.json.Decoder(Request).decode


class OperatorApi:
    """Processes the requests of operators.

    Parameters
    ----------
    send
        Writes a record to all in-sync replicas within a time [s], or raises `NotSent` or `OutcomeUnknown`.
    ready
        Whether everything that was on the bus at the start has been read.
    origin
        Name of the device server.
    timeout
        Longest wait for the bus [s].
    """

    def __init__(
        self,
        flow: AlertsFlow,
        send: Callable[[Record, float], None],
        *,
        ready: Callable[[], bool],
        origin: str,
        clock: Clock,
        timeout: float = 0.4,
    ) -> None:
        self.flow = flow
        self._send = send
        self._ready = ready
        self._origin = origin
        self._clock, self._timeout = clock, timeout
        self._checking = threading.Lock()
        """Held until an action is noted: the next action is checked against it."""
        self._on_the_way: dict[str, Action] = {}
        """Actions not yet read from the log, by id."""

    def act(self, command: str, kind: ActionKind, text: str, client: str = "") -> str:
        """Write an action to the log; return its id.

        Parameters
        ----------
        text
            JSON argument.
        client
            Tango client of the call; empty: unknown.

        Raises
        ------
        CommandRefused
            The argument is wrong, or the action is not possible now; nothing was written.
        NotSent, OutcomeUnknown
            The bus did not confirm it.
        """
        origin = f"SdpAlerts.{command}"
        if why := why_refused(self._clock):
            raise CommandRefused(_NOT_ALLOWED, why, origin)
        self._require_all(origin)
        action = self._action(kind, self._request(kind, text, origin), origin, client)
        proof, place = action_records(action)
        if isinstance(rejected := self.flow.decode(place), Unused):  # as the reader of the log would refuse it
            raise CommandRefused(_FAILED, f"argument: {rejected}", origin)
        with self._checking:
            if why := refusal(action, self._foreseen(action)):
                raise CommandRefused(_NOT_ALLOWED, why, origin)
            self._on_the_way[action.id] = action
        end = self._clock.monotonic() + self._timeout
        try:
            self._send(proof, self._timeout)
            self.flow.given.add(proof)
            self._send(place, max(end - self._clock.monotonic(), 0.0))
        except BusError:
            self._on_the_way.pop(action.id, None)  # it may never come, and the operator may try again
            raise
        return action.id

    def _foreseen(self, action: Action) -> Alarm | None:
        """Return the alarm of an action as it will be after all actions under way."""
        for id, other in list(self._on_the_way.items()):
            # A log that was created again, or a suspended server, must not refuse actions for ever.
            if self.flow.has_read(id) or other.time < action.time - _ON_THE_WAY:
                self._on_the_way.pop(id, None)
        alarm = self.flow.ledger.get(action.key)
        if alarm is not None:
            alarm = msgspec.structs.replace(alarm)
            # A call whose record was not confirmed takes its action out at any time.
            for other in list(self._on_the_way.values()):
                if other.key == action.key and not refusal(other, alarm):
                    take(other, alarm, other.time)
        return alarm

    def since(self, sequence: int) -> str:
        """Return the first alerts and actions after a sequence number, as JSON."""
        log = self.flow.log
        self._require_all(_SINCE)
        entries = log.since(sequence, MOST_ENTRIES, MOST_BYTES)
        oldest = log.complete_from
        if sequence < oldest:
            what = f"sequence: expected at least {oldest}, which is what memory holds, got {sequence}"
            where = f"at the offset sequence - {self.flow.base + 1}, if that is not negative"
            raise CommandRefused(_FAILED, f"{what}; older ones are on the topic alerts {where}", _SINCE)
        inner = b",".join(text for _, text in entries)
        head = b'{"newest":%d,"numbering":%b' % (self.flow.sequence, msgspec.json.encode(self.flow.numbering))
        return (head + b',"entries":[%b]}' % inner).decode()

    def history(self, text: str) -> str:
        """Return the newest alerts and actions in memory about one alarm, the newest first, as JSON.

        Raises
        ------
        CommandRefused
            The argument is wrong, or records of the bus are still unread.
        """
        self._require_all(_HISTORY)
        request = _decode_history(text)
        # Compared with the text of each entry: most entries are about other alarms and need not be decoded.
        wanted = b'"condition":' + msgspec.json.encode(request.condition)
        if request.source is not None:
            wanted += b',"source":' + msgspec.json.encode(request.source)
        newest = (entry for _, entry in reversed(self.flow.log.since(0, 2**62)) if wanted in entry)
        return (b"[%b]" % b",".join(islice(newest, request.most))).decode()

    def alarms(self) -> str:
        """Return all alarms that are not at rest, as JSON.

        Raises
        ------
        CommandRefused
            Records of the bus are still unread: an empty list would look like a good sign.
        """
        self._require_all(_ALARMS)
        found = [self.flow.describe(alarm) for state, alarm in self.flow.ledger.all_shown() if state != states.NORM]
        return msgspec.json.encode(found).decode()

    def refresh(self) -> str:
        """Request events about all alarms that are not at rest; return the id in their marks."""
        id = f"{as_seconds(self._clock.now_us()):.6f}-{secrets.token_hex(3)}"
        if not self.flow.refresh(id):
            raise CommandRefused(_NOT_ALLOWED, "other clients wait for a refresh; try again in a second", _REFRESH)
        return id

    def _require_all(self, origin: str) -> None:
        if not self._ready():
            raise CommandRefused(_NOT_ALLOWED, "the alerts on the bus have not all been read yet; try again", origin)

    def _request(self, kind: ActionKind, text: str, origin: str) -> Request:
        try:
            request = _decode(text)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise CommandRefused(_FAILED, f"argument: {error}, in {text!r:.200}; {_form(kind)}", origin) from error
        for key in _WANTED[kind]:
            if getattr(request, key) in (None, ""):
                raise CommandRefused(
                    _FAILED, f"argument: expected the key {key}, got {text!r:.200}; {_form(kind)}", origin
                )
        return request

    def _action(self, kind: ActionKind, request: Request, origin: str, client: str) -> Action:
        now, longest = self._clock.now_us(), as_seconds(LONGEST_SHELVING)
        duration = request.duration or 0.0
        if kind == "SHELVE" and not 0 < duration <= longest:
            what = f"duration: expected more than 0 and at most {longest:.0f} s, got {duration}"
            raise CommandRefused(_FAILED, what, origin)
        return Action(
            id=f"{as_seconds(now):.6f}-{secrets.token_hex(4)}",
            action=kind,
            condition=request.condition,
            source=request.source if request.source is not None else self._only_source(request.condition, origin),
            operator=request.operator,
            comment=request.comment,
            time=now,
            origin=self._origin,
            client=client,
            occurrence=request.occurrence or 0,
            until=now + as_duration(duration) if kind == "SHELVE" else NEVER,
        )

    def _only_source(self, condition: str, origin: str) -> str:
        sources = sorted(self.flow.ledger.by_condition.get(condition, {}))
        if len(sources) == 1:
            return sources[0]
        found = listed(sources, 20) or "none with an alarm"
        raise CommandRefused(
            _FAILED, f"source: expected the source of an alarm of {condition}; there are: {found}", origin
        )


_SINCE = "SdpAlerts.GetAlertsSince"
_ALARMS = "SdpAlerts.GetAlarms"
_REFRESH = "SdpAlerts.RefreshAlerts"
_HISTORY = "SdpAlerts.GetAlertHistory"


class _HistoryRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    condition: str
    source: str | None = None
    most: Annotated[int, msgspec.Meta(ge=1, le=MOST_ENTRIES)] = 100


def _decode_history(text: str) -> _HistoryRequest:
    try:
        return msgspec.json.decode(text, type=_HistoryRequest)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        form = '{"condition": ..., "source": ..., "most": 100}, the last two may be left out'
        raise CommandRefused(_FAILED, f"argument: {error}, in {text!r:.200}; expected {form}", _HISTORY) from error


def _form(kind: ActionKind) -> str:
    keys = ["condition", "source", "operator", *dict.fromkeys((*_WANTED[kind], "comment"))]
    return f"expected a JSON object with the keys {', '.join(keys)}; source may be left out while there is only one"

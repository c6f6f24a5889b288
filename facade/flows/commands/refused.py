"""Commands that devices refused: logged, shown, and put on the bus.

A refusal is noted in the thread of its call, which never waits for it: the event loop writes the record. After a
restart the newest refusal of each device is read from the bus.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator

from facade.flows.commands.messages import RefusalMessage, given_by, refusal_record
from facade.kernel.bus.port import Record
from facade.kernel.clock import Clock, Time, utc_seconds
from facade.kernel.errors import CommandRefused
from facade.kernel.outcome import USED, Outcome
from facade.kernel.printable import printable
from facade.kernel.reading import Reading
from facade.kernel.runtime.flow import AFTER_CHANGES, DeviceView, Gate

_log = logging.getLogger(__name__)

ATTRIBUTE = "lastRefusal"
FAILED = "API_CommandFailed"
"""Tango's word for a command that could not be carried out."""
NOT_ALLOWED = "API_CommandNotAllowed"
_LONGEST_ARGUMENT, _LONGEST_TEXT, _LONGEST_NAME = 1000, 2000, 200
_MOST_QUEUED = 1000
"""Most refusals waiting for the event loop; a client that repeats a call endlessly costs no memory."""


class Refusals:
    """The refusals of one device server; `note` may be called from several threads.

    Parameters
    ----------
    send
        Queues a record without waiting.
    origin
        Name of the device server.
    """

    def __init__(self, send: Callable[[Record], None], *, origin: str, clock: Clock) -> None:
        self._send, self._origin, self._clock = send, origin, clock
        self._queue: deque[RefusalMessage] = deque(maxlen=_MOST_QUEUED)
        self._newest: dict[str, RefusalMessage] = {}

    def note(
        self, device: str, command: str, why: Exception, *, argument: str | None, client: str, operator: str
    ) -> None:
        """Log a refusal, show it, and queue its record."""
        refusal = RefusalMessage(
            device=device,
            command=command,
            reason=why.reason if isinstance(why, CommandRefused) else FAILED,
            text=printable(str(why))[:_LONGEST_TEXT],
            client=printable(client)[:_LONGEST_NAME],
            operator=operator,
            argument=printable((argument or "")[:_LONGEST_ARGUMENT])[:_LONGEST_ARGUMENT],
            time=self._clock.now_us(),
            origin=self._origin,
        )
        _log.warning("command refused device=%s %s", device, _text(refusal))
        self._newest[device] = refusal
        self._queue.append(refusal)

    def fold(self, refusal: RefusalMessage, record: Record) -> Outcome:
        """Process a refusal from the log; see `facade.kernel.runtime.flow.Flow.fold`."""
        before = self._newest.get(refusal.device)
        if before is None or before.time < refusal.time:
            self._newest[refusal.device] = refusal
        return USED

    def reading(self, device: str) -> Reading | None:
        """Return the newest refusal of a device as a text; None: there is none, or it is not read yet."""
        newest = self._newest.get(device)
        if newest is None:
            return None
        return Reading(printable(f"{utc_seconds(newest.time)} {_text(newest)}"), newest.time)

    def perform(self) -> None:
        """Write the records of noted refusals; see `facade.kernel.runtime.event_loop.PeriodicTask`."""
        while self._queue:
            self._send(refusal_record(self._queue.popleft()))

    def end(self) -> None:
        """Write the last records."""
        self.perform()


class RefusalView(DeviceView):
    """Shows the newest refusal of one device, also before any record was read.

    See `facade.kernel.runtime.flow.View`.
    """

    def __init__(self, device: str, refusals: Refusals, known: Callable[[], bool]) -> None:
        super().__init__(device, Gate(AFTER_CHANGES))
        self._refusals, self._known = refusals, known

    def _version(self) -> object:
        return self._refusals.reading(self._device), self._known()

    def _readings(self, now: Time) -> Iterator[tuple[str, Reading]]:
        newest = self._refusals.reading(self._device)
        if newest is not None:
            yield ATTRIBUTE, self._changes.reading(ATTRIBUTE, newest.value, newest.time)
        elif self._known():
            yield ATTRIBUTE, self._changes.reading(ATTRIBUTE, "", now)


def _text(refusal: RefusalMessage) -> str:
    who = given_by(refusal.operator, refusal.client)
    by = f" by {who}" if who else ""
    return f"{refusal.command}{by}, {refusal.reason}: {refusal.text}"

"""The controller of the dome: it executes commands, here with a motor that is only a time.

It is a worker: an acknowledgement and the position after the command are one transaction, so no command is begun twice.
A controller that is killed while the dome moves does not know it afterwards; the device server then ends the command
with TIMED_OUT.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from facade.kernel.bus.port import Record
from facade.kernel.clock import Clock
from facade.kernel.codec.decode import BatchDecoder
from facade.kernel.codec.json_schema import compile_message
from facade.kernel.icd.model import Icd
from facade.kernel.outcome import USED, Unused
from facade.kernel.runtime.worker import OffsetRanges, OpenTransaction, TransactionalWorker, as_record
from facade.kernel.runtime.worker_process import FREE, Site, Slot, run_worker
from observatory.dome import ACCEPTED, ACKS, COMMANDS, COMPLETED, REJECTED

_SIGN_OF_LIFE, _MOST, _WAIT, _RETRY = 1.0, 16, 0.05, 0.5


class DomeFold:
    """Executes one command at a time; see `facade.kernel.runtime.worker.Fold`."""

    def __init__(self, transaction: OpenTransaction, icd: Icd, clock: Clock, travel: float) -> None:
        self._transaction, self._clock, self._travel = transaction, clock, travel
        self._decoder = BatchDecoder(compile_message("command", icd.messages["command"]))
        self._ack: Any = compile_message("command-ack", icd.messages["command-ack"])
        self._acks: dict[tuple[str, str], Any] = {}
        """Acknowledgements that are not committed, by id and status."""
        self._moving: Any = None
        self._until = 0.0
        """Monotonic time at which the movement ends [s]."""

    def take(self) -> bool:
        """Begin a command, or end the one under way; each is told at once."""
        for run in self._transaction.read(_MOST, _WAIT):
            values = run.values()
            self._transaction.count(run, len(values))
            for index, value in enumerate(values):
                one: Any = self._decoder.decode_one(value)
                if not isinstance(one, Unused):
                    self._begin(one)
                self._transaction.settle(run.record(index), one if isinstance(one, Unused) else USED)
        if self._moving is not None and self._clock.monotonic() >= self._until:
            self._say(self._moving, COMPLETED)
            self._moving = None
        return bool(self._acks) or self._transaction.age() >= _SIGN_OF_LIFE

    def _begin(self, one: Any) -> None:
        if self._moving is not None and self._moving.id != one.id:
            self._say(one, REJECTED, f"expected a dome at rest, got {self._moving.command} under way")
        elif self._clock.now_us() > one.not_after and self._moving is None:
            self._say(one, REJECTED, "it came too late to begin")
        else:
            if self._moving is None:  # otherwise the transaction failed, and the command came again
                self._moving, self._until = one, self._clock.monotonic() + self._travel
            self._say(one, ACCEPTED)

    def _say(self, one: Any, status: str, text: str = "") -> None:
        about = {"id": one.id, "device": one.device, "command": one.command, "time": self._clock.now_us(), "text": text}
        self._acks[one.id, status] = self._ack(schema="command-ack/1", status=status, **about)

    def output(self, ranges: OffsetRanges) -> Sequence[Record]:
        """Return the acknowledgements."""
        return [as_record(ACKS, one.device, one) for one in self._acks.values()]

    def end(self, *, is_committed: bool) -> None:
        """Forget what has been told; after a failure it is told with the next transaction."""
        if is_committed:
            self._acks = {}


def dome(
    slot: Slot = FREE,
    travel: Annotated[float, typer.Option(min=0.0, help="Time that the dome takes to open or close [s].")] = 1.0,
) -> None:
    """Execute the commands to the dome."""

    def make(site: Site) -> TransactionalWorker:
        transaction = OpenTransaction(site.log(COMMANDS), [COMMANDS], name=site.name, clock=site.clock)
        return TransactionalWorker(transaction, DomeFold(transaction, site.icd, site.clock, travel), retry=_RETRY)

    run_worker("dome-controller", slot, make)

"""The sums of logs and metrics as a flow of a device server."""

from collections.abc import Mapping
from typing import Any

from facade.bus.port import Record
from facade.flows.logs.ledger import LogLedger
from facade.flows.logs.messages import SUMMARY, LogSummary, decode_summary
from facade.outcome import INCONSISTENT, USED, Outcome, Rejected
from facade.printable import excerpt
from facade.runtime.accounts import OVERLAP
from facade.runtime.flow import Fault, FaultKey, Flow
from facade.severities import WARNING

RISING, SILENT = "errorsRising", "componentSilent"
"""Conditions of the ICD."""


class LogFlow(Flow):
    """All sums, added up; see `facade.runtime.flow.Flow`."""

    topic = SUMMARY
    durable = True

    def __init__(self) -> None:
        self.ledger = LogLedger()

    def fold(self, record: Record, *, count: bool) -> Outcome:
        """Add a summary; see `facade.runtime.flow.Flow`."""
        summary = decode_summary(record.value)
        if not isinstance(summary, LogSummary):
            return summary
        key = f"{summary.stream}/{summary.partition}"
        if record.key != key.encode():
            return Rejected(INCONSISTENT, "$.stream", excerpt(f"expected the record's key {record.key!r}, got {key}"))
        if summary.offset_to < summary.offset_from:
            what = f"expected {summary.offset_from} or more, got {summary.offset_to}"
            return Rejected(INCONSISTENT, "$.offset_to", what)
        if count:  # what the snapshot has needs not to be rebuilt
            if trouble := self.ledger.take(summary):
                return Rejected(OVERLAP, "$.offset_from", trouble)
            self.ledger.add(summary, record.timestamp_us / 1e6)
        return USED

    def find(self, now: float) -> dict[FaultKey, Fault]:
        """Return the components whose errors rise, and those that are silent."""
        rising = sorted(self.ledger.rising(now).items(), key=lambda one: -one[1][0])
        found = {
            (RISING, name): Fault(
                WARNING, f"{recent} errors in 20 s, {before} in the 280 s before", values={"errors": recent}
            )
            for name, (recent, before) in rising
        }
        return found | {
            (SILENT, name): Fault(WARNING, "wrote regularly, and has written nothing for 30 s while others did")
            for name in self.ledger.silent()
        }

    def as_dict(self) -> dict[str, Any]:
        """Return the state for a snapshot."""
        return self.ledger.as_dict()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take the state from a snapshot."""
        self.ledger.restore(state)

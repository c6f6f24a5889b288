"""Which tables are lost: what is announced as failed, until a newer one of its product is complete.

All of it follows from what is on ``tables``, so a restart finds the same again. A loss that was made good before it
could be reported is found all the same, until it has been reported: an operator is to hear of each product that lost
one.
"""

from collections.abc import Callable, Iterator, Sequence

from facade.flows.tables.flow import TablesFlow
from facade.messages import Table
from facade.runtime.flow import Fault, FaultKey
from facade.severities import ALARM

TABLE_LOST = "tableLost"
"""Condition of the ICD."""

_MADE_GOOD = 600.0
"""So long after it was found out, a loss that was made good is still reported [s]. Alarms at rest are remembered as
long; after that nobody could know, after a restart, that it has been reported before."""


class Losses:
    """Finds the tables that are lost.

    Parameters
    ----------
    prefixes
        How the names of the products begin that are looked at.
    has_reported
        Whether an alert of a condition and source is on the bus that began then [Unix us], or later.
    """

    def __init__(
        self, flow: TablesFlow, prefixes: Sequence[str], has_reported: Callable[[FaultKey, int], bool]
    ) -> None:
        self._flow = flow
        self._prefixes = tuple(prefixes)
        self._has_reported = has_reported

    def is_loss(self, key: FaultKey) -> bool:
        """Return whether a condition and source are of the kind that is found here."""
        condition, product = key
        return condition == TABLE_LOST and product.startswith(self._prefixes)

    def find(self, now: float) -> dict[FaultKey, Fault]:
        """Return what is lost by condition and product."""
        return dict(self._find(now))

    def _find(self, now: float) -> Iterator[tuple[FaultKey, Fault]]:
        for table in self._flow.failed.values():
            key = (TABLE_LOST, table.product)
            if not self.is_loss(key) or (self._is_made_good(table) and not self._is_news(key, table, now)):
                continue
            text = f"table {table.table} of {table.product} never became complete: {table.reason or 'no reason given'}"
            yield key, Fault(ALARM, text, table.time)

    def _is_made_good(self, table: Table) -> bool:
        """Return whether a newer table of its product is complete: found so later, or sent later."""
        complete = self._flow.complete.get(table.product)
        newer = None if complete is None else complete.table
        # Nothing is complete before it was sent, whatever its producer's clock says.
        return newer is not None and (newer.time > table.time or min(newer.sent_at, newer.time) > table.sent_at)

    def _is_news(self, key: FaultKey, table: Table, now: float) -> bool:
        return now - table.time / 1e6 < _MADE_GOOD and not self._has_reported(key, table.time)

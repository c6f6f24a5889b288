"""How commands have ended, so that who executes an order knows that nobody wants it any more.

A controller that ends a command ends its orders as well. One that was killed does not know them when it ends the
command without running it again.
"""

from collections import OrderedDict

from facade.flows.commands.messages import AckMessage
from facade.flows.commands.outcomes import BY_FACADE, COMPLETED, FINAL

_KEPT = 5_000
"""Outcomes of commands of all devices; an order whose parent is older has long expired."""


class Parents:
    """The first outcomes of the newest commands; may be used from several threads."""

    def __init__(self) -> None:
        self._ended: OrderedDict[str, AckMessage] = OrderedDict()

    def fold(self, ack: AckMessage) -> None:
        """Take an acknowledgement of any command from the log."""
        if ack.status in FINAL - BY_FACADE and ack.id not in self._ended:
            self._ended[ack.id] = ack
            if len(self._ended) > _KEPT:
                self._ended.popitem(last=False)

    def why_ended(self, id: str) -> str:
        """Say why the orders of a command are not wanted any more; an empty text when they are."""
        ack = self._ended.get(id)
        return "" if ack is None or ack.status == COMPLETED else f"{ack.command} {id}, which had given it, has ended"

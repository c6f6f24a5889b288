"""The division of ingest nodes into racks: a rack is served by one device-server instance.

The partials of a rack are on one partition of the summary topic, so that a device server reads little beside them.
"""

from collections.abc import Iterable
from dataclasses import dataclass

_NODES = 10_000
"""Upper bound of a node's number, in each message."""


@dataclass(frozen=True, slots=True)
class Racks:
    """The division of the nodes into racks."""

    size: int
    """Nodes of a rack."""
    partitions: int
    """Partitions of the summary topic."""

    def rack(self, node: int) -> int:
        """Return the rack of a node."""
        return node // self.size

    def nodes(self, rack: int) -> range:
        """Return the nodes of a rack."""
        return range(rack * self.size, min((rack + 1) * self.size, _NODES))

    def partition(self, node: int) -> int:
        """Return the partition with the partials of a node."""
        return self.rack(node) % self.partitions

    def partitions_of(self, nodes: Iterable[int]) -> list[int]:
        """Return the partitions with the partials of some nodes, ascending."""
        return sorted({self.partition(node) for node in nodes})

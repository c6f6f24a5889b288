"""A member of a consumer group whose effects are on the bus, for workers that keep their own places."""

from collections.abc import Iterable, Mapping
from typing import Protocol

from facade.bus.port import GroupMember, Record


class TransactionalMember(GroupMember, Protocol):
    """A member whose effects are on the bus: they and its places are one transaction.

    `committed` waits for what any member, this one before a restart as well, has begun to commit. From then on the
    group refuses who has lost the partitions: whatever that one has written stands before the present ends of topics.
    """

    def write(self, records: Iterable[Record], offsets: Mapping[int, int]) -> None:
        """Write records, and say by partition before which offset everything is done: both or neither.

        Raises
        ------
        Aborted
            It did not happen, or may have; `committed` and the topics say which of the two.
        Fenced
            Another process has taken this member's name.
        """

"""The account of a simulated stream: the records sent, and their expected outcomes.

Used and late records have sequence numbers, refused ones have none; see `facade.kernel.sequences`.
"""

from collections import Counter

import msgspec
import numpy as np

from facade.flows.telemetry.simulator.draws import PACKETS, Block
from facade.flows.telemetry.simulator.faults import HeapOutcome, Scenario
from facade.flows.telemetry.simulator.garbage import Garbage

_UNSEEN = np.iinfo(np.int64).max


class NodeAccount(msgspec.Struct, frozen=True, kw_only=True):
    """Expected figures of one node after all records have been read."""

    used: int
    """Records in their window."""
    late: int
    """Records that are counted as late."""
    received: int
    """Sum over the used and late records [packets]."""
    lost: int
    """Sum over the used and late records [packets]."""
    late_packets: int
    """Sum of the field ``late`` over the used and late records [packets]."""
    missing: int
    """Gaps in the sequence numbers."""
    duplicates: int
    """Records with a repeated sequence number."""
    lowest_seq: int | None
    highest_seq: int | None

    @property
    def counted(self) -> int:
        """Return the number of records in totals."""
        return self.used + self.late


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """``consumed = used + late + suppressed + dead_lettered`` at the other end."""

    consumed: int
    used: int
    late: int
    suppressed: dict[str, int]
    dead_lettered: dict[str, int]


class SentAccount:
    """Counts the records of a stream; exact after each batch."""

    def __init__(self, scenario: Scenario) -> None:
        self._first_node = scenario.first_node
        nodes = scenario.nodes
        self.fired: Counter[str] = Counter(
            dict.fromkeys(("gaps", "duplicates", "disorder", "late", "ahead", "garbage", "silence"), 0)
        )
        self.garbage: Counter[str] = Counter()
        """Malformed records by kind."""
        self._suppressed: Counter[str] = Counter()
        self._dead_lettered: Counter[str] = Counter()
        self._used, self._late, self._distinct, self._received, self._lost, self._late_packets = (
            np.zeros(nodes, dtype=np.int64) for _ in range(6)
        )
        self._lowest = np.full(nodes, _UNSEEN, dtype=np.int64)
        self._highest = np.full(nodes, -1, dtype=np.int64)

    def add(self, block: Block) -> None:
        """Count heaps before they are sent, without the garbage among them."""
        node, sent = block.node, block.sent
        on = sent > 0
        used, ahead = block.outcome == HeapOutcome.USED, block.outcome == HeapOutcome.AHEAD
        late = block.outcome == HeapOutcome.LATE
        seen = on & ~ahead
        copies = sent * ~ahead
        for total, weight in (
            (self._used, sent * used),
            (self._late, sent * late),
            (self._distinct, seen),
            (self._received, copies * (PACKETS - block.lost - block.late_packets)),
            (self._lost, copies * block.lost),
            (self._late_packets, copies * block.late_packets),
        ):
            # Sums of one batch are far below 2^53, up to which doubles are exact.
            total += np.bincount(node, weight, len(total)).astype(np.int64)
        np.minimum.at(self._lowest, node[seen], block.seq[seen])
        np.maximum.at(self._highest, node[seen], block.seq[seen])
        refused = int(sent[ahead].sum())
        if refused:
            self._dead_lettered["time-ahead"] += refused
        for name, count in (
            ("gaps", block.skipped[on].sum()),
            ("duplicates", (sent - on).sum()),
            ("disorder", block.swapped.sum()),
            ("late", sent[late].sum()),
            ("ahead", refused),
            ("silence", (~on).sum()),
        ):
            self.fired[name] += int(count)

    def add_garbage(self, kind: Garbage) -> None:
        """Count one malformed record."""
        self.fired["garbage"] += 1
        self.garbage[kind.name] += 1
        by_reason = self._suppressed if kind.outcome == "suppressed" else self._dead_lettered
        by_reason[str(kind.reason)] += 1

    def expected(self) -> Expected:
        """Return the expected outcomes of all records so far."""
        used, late = int(self._used.sum()), int(self._late.sum())
        return Expected(
            consumed=used + late + self._suppressed.total() + self._dead_lettered.total(),
            used=used,
            late=late,
            suppressed=dict(self._suppressed),
            dead_lettered=dict(self._dead_lettered),
        )

    def nodes(self) -> dict[str, NodeAccount]:
        """Return the account of each node by its number in decimal."""
        seen = self._highest >= 0
        missing = np.where(seen, self._highest - self._lowest + 1 - self._distinct, 0)
        duplicates = self._used + self._late - self._distinct
        return {
            str(self._first_node + i): NodeAccount(
                used=int(self._used[i]),
                late=int(self._late[i]),
                received=int(self._received[i]),
                lost=int(self._lost[i]),
                late_packets=int(self._late_packets[i]),
                missing=int(missing[i]),
                duplicates=int(duplicates[i]),
                lowest_seq=int(self._lowest[i]) if seen[i] else None,
                highest_seq=int(self._highest[i]) if seen[i] else None,
            )
            for i in range(len(seen))
        }

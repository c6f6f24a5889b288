"""What device servers make of the partials: totals, sequences and windows, per node and over all nodes.

Policies:

* **Order.** Partials merge in any order; only what a window shows depends on which have come.
* **Closing.** A node's window is closed when the node has spoken of a later one. When it falls
  silent, the newest window is shown once nothing came for the window's length plus the hold time.
  A straggler still corrects a window that is kept.
* **All nodes.** The window shown is the newest one that at least half of the live nodes are in and
  have left behind, so that one node with a wrong clock cannot drag it; it is shown when all of
  them have left it, or after the hold time. The first one of a stream is not shown while the
  stream goes on: which nodes will be in it is not known before the next.
* **Restart.** Totals and sequences come from the snapshot and go on from its offsets. Windows are
  rebuilt from records a little further back, which must not be counted again: `count=False`.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from facade.flows.telemetry.partial import FieldStatistics, Partial, Summary, copy_partial, merge
from facade.flows.telemetry.plan import MICRO, Plan
from facade.flows.telemetry.sequences import SeenNumbers

KEPT_WINDOWS = 3
"""Windows kept per node: the one shown, the open one, and one for a straggler."""


class NodeTotals(msgspec.Struct):
    """What one node has sent since the ledger began."""

    count: int = 0
    late: int = 0
    sums: dict[str, int | float] = {}
    """Sums of the fields that have one."""
    epoch: int = -1
    seen: SeenNumbers = msgspec.field(default_factory=SeenNumbers)
    newest_us: int = 0
    """Newest data time [Unix us]."""
    heard: float = 0.0
    """When a worker last wrote about the node [Unix s]."""

    def add(self, partial: Partial) -> None:
        """Count a partial."""
        if partial.epoch != self.epoch and partial.time_max > self.newest_us:
            # A new scan restarts the sequence. It is told by its time: a single record with a wrong
            # scan number must not end the counting for good.
            self.epoch, self.seen = partial.epoch, SeenNumbers()
        if partial.late:
            self.late += partial.count
        else:
            self.count += partial.count
            for name, statistics in partial.fields.items():
                if statistics.sum is not None:
                    self.sums[name] = self.sums.get(name, 0) + statistics.sum
            self.newest_us = max(self.newest_us, partial.time_max)
        if partial.epoch == self.epoch:
            self.seen.add(partial.runs, partial.count)

    def as_partial(self) -> Partial:
        """Return count and sums in the form that the rules read."""
        return Partial(
            epoch=self.epoch,
            window=0,
            late=False,
            count=self.count,
            time_min=0,
            time_max=self.newest_us,
            runs=[],
            fields={name: FieldStatistics(sum=value) for name, value in self.sums.items()},
        )


class _State(msgspec.Struct):
    """A ledger in a snapshot."""

    nodes: dict[int, NodeTotals]


class NodeWindows:
    """The newest windows of one node."""

    __slots__ = ("_first", "_plan", "_rebuilt", "_windows", "heard")

    def __init__(self, plan: Plan, *, rebuilt: bool = False) -> None:
        self._plan = plan
        self._windows: dict[int, Partial] = {}
        self._rebuilt = rebuilt
        self._first: int | None = None
        self.heard = 0.0
        """When a worker last wrote about the node [Unix s]."""

    def add(self, partial: Partial, heard: float) -> None:
        """Put a partial into its window."""
        self.heard = max(self.heard, heard)
        if partial.late or partial.count == 0:
            return
        if self._first is None:
            self._first = partial.window
        mine = self._windows.get(partial.window)
        if mine is None:
            self._windows[partial.window] = copy_partial(partial)
            while len(self._windows) > KEPT_WINDOWS:
                del self._windows[min(self._windows)]
        else:
            merge(mine, partial)

    def shown(self, now: float) -> Partial | None:
        """Return the newest closed window, if any.

        Parameters
        ----------
        now
            Wall-clock time [Unix s]; it only says whether the node has fallen silent.
        """
        newest = max(self._windows, default=None)
        if newest is None:
            return None
        silent = now - self.heard >= self._plan.window.length + self._plan.window.hold
        # After a silence, what was shown before it is not shown again as if it were new.
        recent = newest - KEPT_WINDOWS * self._plan.length_us
        closed = newest if silent else max((one for one in self._windows if recent <= one < newest), default=None)
        if closed is None or (self._rebuilt and closed == self._first):
            return None  # rebuilding began in the middle of this window
        return self._windows[closed]


class AllNodesWindows:
    """The newest windows over all nodes, with the nodes that are in each."""

    def __init__(self, plan: Plan, *, rebuilt: bool = False) -> None:
        self._plan = plan
        self._windows: dict[int, tuple[Partial, set[int]]] = {}
        self._newest: dict[int, int] = {}
        self._heard: dict[int, float] = {}
        self._left_at: dict[int, float] = {}
        self._rebuilt = rebuilt
        self._first: int | None = None

    def add(self, node: int, partial: Partial, heard: float) -> None:
        """Put a partial of a node into its window."""
        self._heard[node] = max(self._heard.get(node, 0.0), heard)
        if partial.late or partial.count == 0:
            return
        if self._first is None:
            self._first = partial.window
        self._newest[node] = max(self._newest.get(node, 0), partial.window)
        mine = self._windows.get(partial.window)
        if mine is None:
            self._windows[partial.window] = (copy_partial(partial), {node})
            while len(self._windows) > KEPT_WINDOWS * 4:  # more than per node: clocks differ
                del self._windows[min(self._windows)]
        else:
            merge(mine[0], partial)
            mine[1].add(node)

    def live(self, now: float, within: float) -> set[int]:
        """Return the nodes that were heard of within the last `within` [s]."""
        return {node for node, heard in self._heard.items() if now - heard <= within}

    def shown(self, now: float, within: float) -> tuple[Partial, frozenset[int]] | None:
        """Return the window to show and the nodes in it, if any.

        Parameters
        ----------
        now
            Wall-clock time [Unix s].
        within
            A node that was silent for longer [s] is not waited for.
        """
        newest = sorted(self._newest[node] for node in self.live(now, within) if node in self._newest)
        if not newest:
            return self._get(max(self._windows, default=None))
        middle = newest[(len(newest) - 1) // 2]
        silence = now - max(self._heard.values())
        if silence >= self._plan.window.length + self._plan.window.hold:
            return self._get(middle)
        reach = round(within * MICRO)  # what was before a silence is not shown again as if it were new
        for window in sorted((w for w in self._windows if middle - reach <= w < middle), reverse=True):
            if 2 * len(self._windows[window][1]) < len(newest):
                continue  # only nodes with wrong clocks are in it
            if not any(window - reach <= before < window for before in self._windows):
                continue  # nodes that nobody has heard of yet may be in it
            left_at = self._left_at.setdefault(window, now)
            if newest[0] > window or now - left_at >= self._plan.window.hold:
                self._left_at = {w: t for w, t in self._left_at.items() if w in self._windows}
                return self._get(window)
        return None

    def _get(self, window: int | None) -> tuple[Partial, frozenset[int]] | None:
        if window is None or window not in self._windows or (self._rebuilt and window == self._first):
            return None
        partial, nodes = self._windows[window]
        return partial, frozenset(nodes)


class NotificationLedger:
    """Everything that one device server keeps of the partials of some nodes.

    Parameters
    ----------
    nodes
        Numbers of the nodes to keep; partials of others are not for this server.
    per_node
        Whether to keep windows of each node.
    over_all
        Whether to keep windows over all nodes.
    """

    def __init__(self, plan: Plan, nodes: Iterable[int], *, per_node: bool, over_all: bool) -> None:
        self._plan = plan
        self.nodes = frozenset(nodes)
        self.totals = {node: NodeTotals() for node in self.nodes}
        self._per_node = per_node
        self._over_all = over_all
        self._begin(rebuilt=False)

    def fold(self, summary: Summary, heard: float, *, count: bool = True) -> None:
        """Merge what a worker wrote about one node.

        Parameters
        ----------
        heard
            When it was written [Unix s].
        count
            False for records that the snapshot already counts: they only rebuild windows.
        """
        node = summary.node
        if node not in self.nodes:
            return
        totals = self.totals[node]
        totals.heard = max(totals.heard, heard)
        for partial in summary.partials:
            if count:
                totals.add(partial)
            if self._per_node:
                self.windows[node].add(partial, heard)
            if self._over_all:
                self.all_nodes.add(node, partial, heard)

    def as_dict(self) -> dict[str, Any]:
        """Return the totals for a snapshot."""
        heard = {str(node): totals for node, totals in self.totals.items() if totals.heard}
        return {"nodes": msgspec.to_builtins(heard)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take the totals from a snapshot; windows must be rebuilt from records.

        Raises
        ------
        msgspec.ValidationError
            It has another form; nothing was taken.
        """
        for node, totals in msgspec.convert(state, _State, strict=False).nodes.items():
            if node in self.nodes:
                self.totals[node] = totals
        self._begin(rebuilt=True)

    def overall(self) -> Partial:
        """Return the totals over all nodes."""
        partials = [totals.as_partial() for totals in self.totals.values()]
        whole = NodeTotals().as_partial()
        for partial in partials:
            merge(whole, partial)
        return whole

    def _begin(self, *, rebuilt: bool) -> None:
        self.windows = {node: NodeWindows(self._plan, rebuilt=rebuilt) for node in self.nodes} if self._per_node else {}
        self.all_nodes = AllNodesWindows(self._plan, rebuilt=rebuilt)


def seconds(time_us: int) -> float:
    """Convert a data time from [Unix us] to [Unix s]."""
    return time_us / MICRO

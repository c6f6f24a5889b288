"""What processes hold in memory: elements of everything that their threads can reach, and what of it grows."""

import gc
import types
from collections import Counter, deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.simulation.scheduler import Process

if TYPE_CHECKING:
    from tests.simulation.site import Site

EACH = 10.0
"""Time between two looks [simulated s]."""
_LIVED = 30.0
"""A process that is younger may still fill what it needs in any case [simulated s]."""
_SLACK = 150
"""What a place may have more elements than in the first half of its process' life."""

MAY_GROW = {
    "FieldArrays.sum": 2_000,  # of the windows that are open, which are more behind a slow worker
    "Arguments._schemas": 2_000,  # of the ICD, which another place may have reached before
    "AlertLog._entries": 20_000,  # SdpAlerts' history
    "AlertsFlow._alerted": 10_000,  # alerts that are known again
    "Assembly._past": 10_000,  # tables that have ended
    "CommandAck.states": 1_000_000,  # in 50 acknowledgements of each of 20,000 commands
    "CommandView._texts": 2_000,  # of finished commands, as many as lrcFinished has
    "Lease._sent": 100,  # signs of life that have not come back
    "LrcEvents._recent": 1_000,  # commands of the last seconds
    "LrcEvents._told": 10_000,
    "NewestMetric.array": 1_000,  # of each metric
    "OrderAdmission._begun": 5_000,
    "OrderAdmission._ended": 5_000,
    "ParentOrders._ended": 5_000,
    "FieldStatistics.sketch": 5_000,  # as of Partial.fields
    "Partial.fields": 1_000,  # in up to 16 windows of each node while a worker stands still
    "Progress._stands": 1_000,  # partitions
    "Publisher._due_at": 1_000,  # attributes
    "QualityView._rate": 1_000,  # the counts of the last seconds
    "RateMeter._seconds": 1_000,  # the last seconds
    "Statistics._occurrences": 1_000,  # the newest ones of each alarm
    "TelemetryHealth._counted": 1_000,  # late records of each node in 10 s
    "Tracked.acks": 1_000_000,
    "Tracker._by_id": 20_000,
    "Tracker._by_transaction": 3 * 20_000,
    "_Device.finished": 20_000,
}
"""Places that remember some of the past, or each attribute and partition, and the most that they may hold."""

_LEAVES = (int, float, str, bytes, type(None), type, types.ModuleType, types.CodeType, types.BuiltinFunctionType)
_LIBRARY = ("builtins", "collections", "facade.kernel.recent", "functools", "itertools")
_OURS = ("facade.", "tests.simulation.threads")


def sizes(process: Process) -> Counter[str]:
    """Count the elements of containers that the threads of a process reach, by class and attribute.

    What belongs to the simulation is left out, and so is the ICD.
    """
    seen: set[int] = set()
    found: Counter[str] = Counter()
    left = list(_variables(process))
    while left:
        one, place = left.pop()
        if isinstance(one, _LEAVES) or id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, np.ndarray):
            found[place] += one.size
        elif isinstance(one, dict | list | set | deque | bytearray):
            found[place] += len(one)
        left += _parts(one, place)
    return found


def _variables(process: Process) -> Iterator[tuple[Any, str]]:
    """Return what stands in the variables of the functions that wait in a process."""
    for task in process.tasks:
        frame = task.body.gr_frame
        while frame is not None:
            yield from ((one, f"{frame.f_code.co_qualname}: {name}") for name, one in frame.f_locals.items())
            frame = frame.f_back


def _parts(one: Any, place: str) -> Iterator[tuple[Any, str]]:
    """Return what an object refers to, each with its place."""
    kind = type(one)
    if isinstance(one, types.FunctionType) and str(one.__module__).startswith("tests."):
        return
    if isinstance(one, tuple) or kind.__module__ in _LIBRARY:
        shared = [id(getattr(one, name, None)) for name in ("__globals__", "__builtins__")]
        yield from ((part, place) for part in gc.get_referents(one) if id(part) not in shared)
    elif any(base.__module__.startswith(_OURS) for base in kind.__mro__) and "facade.kernel.icd" not in kind.__module__:
        names = [*getattr(one, "__dict__", ()), *getattr(one, "__struct_fields__", ())]
        names += [name for base in kind.__mro__ for name in base.__dict__.get("__slots__", ())]
        is_ours = kind.__module__.startswith("facade.")
        for name in dict.fromkeys(names):
            yield getattr(one, name, None), f"{kind.__qualname__}.{name}" if is_ours else place


class Growth:
    """What the processes of a site hold, from look to look, and when all is quiet again."""

    def __init__(self) -> None:
        self._looks: dict[Process, list[tuple[float, Counter[str]]]] = {}

    def look(self, site: "Site") -> None:
        alive = [one for one in site.processes.values() if not one.is_dead]
        self._looks = {one: [*self._looks.get(one, ()), (site.scheduler.now, sizes(one))] for one in alive}

    def found(self) -> Iterator[str]:
        """Measure processes that have run for long enough once more, and return what has grown."""
        for process, looks in self._looks.items():
            begin, end = looks[0][0], looks[-1][0]
            if process.is_dead or end - begin < _LIVED:
                continue
            for place, size in sizes(process).items():
                most = max(before[place] for at, before in looks if at <= (begin + end) / 2)
                limit = MAY_GROW.get(place, most + _SLACK)
                if size > limit:
                    yield f"{process.name}: {place} has {size} elements, had {most} before, and may have {limit}"

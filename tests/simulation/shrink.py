"""From a run that failed to the few faults that matter."""

import time
from collections.abc import Callable

from tests.simulation.faults import Fault
from tests.simulation.run import Result

BUDGET = 60.0
"""Longest processor time for it [s]."""


def shrink(result: Result, again: Callable[[list[Fault]], Result], budget: float = BUDGET) -> Result:
    """Leave out faults as long as the run still fails; return the run with the fewest.

    Parameters
    ----------
    again
        Runs the same seed with some of the faults.
    """
    end = time.process_time() + budget
    size = max(len(result.faults) // 2, 1)
    while size and time.process_time() < end:
        begin = 0
        while begin < len(result.faults) and time.process_time() < end:
            some = result.faults[:begin] + result.faults[begin + size :]
            fewer = again(some) if some else None
            if fewer is not None and fewer.failures:
                result = fewer
            else:
                begin += size
        size = size // 2
    return result

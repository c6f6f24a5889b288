"""The rate of a stream processor, from its first tenth of the records to the last one."""

import json
import resource
import time


class Meter:
    """Counts the records of a run.

    Parameters
    ----------
    records
        Of the whole run. The first tenth is not timed, as everything starts meanwhile.
    """

    def __init__(self, records: int) -> None:
        self._warm, self._records, self.taken = records // 10, records, 0
        self._begin = (0.0, 0.0)

    def count(self) -> bool:
        """Count a record, and print the figures when it is the last one; return whether it is."""
        self.taken += 1
        if self.taken == self._warm:
            self._begin = _now()
        if self.taken != self._records:
            return False
        seconds, cpu = (now - begin for now, begin in zip(_now(), self._begin, strict=True))
        print(json.dumps({"records": self._records - self._warm, "seconds": seconds, "cpu": cpu}), flush=True)  # noqa: T201
        return True


def _now() -> tuple[float, float]:
    """Return the time, and the processor time of the process [s]."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return time.monotonic(), used.ru_utime + used.ru_stime  # noqa: TID251

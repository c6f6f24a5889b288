"""Processor time and memory of a process as the kernel counts them."""

import os
import resource
from pathlib import Path

_PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")


def own_cpu() -> float:
    """Return the processor time of this process, all threads, user and system [s]."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def cpu(pid: int) -> float:
    """Return the processor time of a process, all threads, user and system [s]; 0 when it is gone."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    # The name stands in parentheses and may itself hold spaces and parentheses.
    fields = text.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def resident(pid: int | str = "self") -> float:
    """Return the resident memory of a process [MB]; 0 when it is gone."""
    return _status(pid, "VmRSS")


def peak_resident(pid: int | str = "self") -> float:
    """Return the most memory that was ever resident [MB].

    Not from ``getrusage``: that figure is inherited from whoever started the process.
    """
    return _status(pid, "VmHWM")


def _status(pid: int | str, name: str) -> float:
    try:
        lines = (_PROC / str(pid) / "status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return next((int(line.split()[1]) / 1000 for line in lines if line.startswith(name + ":")), 0.0)

"""Processor time and memory of processes as the kernel counts them."""

import resource
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from sdp_facade_lab.deployment import Deployment


def own_cpu() -> float:
    """Return the processor time of this process, all threads, user and system [s]."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _of(pid: int, ask: Callable[[psutil.Process], float]) -> float:
    try:
        return float(ask(psutil.Process(pid)))
    except psutil.NoSuchProcess:
        return 0.0


def cpu(pid: int) -> float:
    """Return the processor time of a process, all threads, user and system [s]; 0 when it is gone."""
    return _of(pid, lambda process: sum(process.cpu_times()[:2]))


def resident(pid: int) -> float:
    """Return the resident memory of a process [MB]; 0 when it is gone."""
    return _of(pid, lambda process: process.memory_info().rss / 1e6)


def peak_resident(pid: int | str = "self") -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return next((int(line.split()[1]) / 1000 for line in lines if line.startswith("VmHWM:")), 0.0)


def cpu_of_all(deployment: Deployment) -> dict[str, float]:
    return {**{one.name: cpu(one.pid) for one in deployment.processes}, "kafka": cpu(deployment.broker.pid)}


def proportional_memory(deployment: Deployment) -> dict[str, float]:
    return {
        one.name: round(_of(one.pid, lambda it: it.memory_full_info().pss / 1e6), 1) for one in deployment.processes
    }


def memory_of_all(deployment: Deployment) -> dict[str, float]:
    return {process.name: round(resident(process.pid), 1) for process in deployment.processes}


def cores_used(before: Mapping[str, float], after: Mapping[str, float], seconds: float) -> dict[str, float]:
    return {name: round((after[name] - used) / seconds, 3) for name, used in before.items() if name in after}


def in_words(cores: Mapping[str, float]) -> str:
    parts = [f"{name} {used:.2f}" for name, used in sorted(cores.items(), key=lambda item: -item[1])]
    return f"cores used: {', '.join(parts)}; together {sum(cores.values()):.2f}"

"""What Prometheus in a container says of the others: whether it reaches them, and which rules fire."""

import json
import urllib.error
import urllib.request
from typing import Any, Final

from facade.errors import InfraError
from proving.containers.project import Project
from proving.progress import ProgressLine

_NOT_STARTED: Final = frozenset({"kafka"})
"""Jobs of services whose images come from a registry alone."""
_DOWN: Final = "SdpProcessDown"
_UP_WITHIN_S, _FIRES_WITHIN_S = 300.0, 300.0


def check(project: Project, progress: ProgressLine, worker: str) -> None:
    """Start Prometheus, wait for its targets, and stop a worker until a rule fires that names it."""
    project.start("prometheus")
    project.await_healthy(["prometheus"])
    if progress.wait_until(lambda: not _down(project), _UP_WITHIN_S, "all targets of Prometheus") is None:
        raise InfraError(
            f"Prometheus: expected all targets within {_UP_WITHIN_S:g} s, not reached: {'; '.join(_down(project))}"
        )
    progress.step(f"Prometheus reaches {len(_targets(project))} targets")
    project.stop(worker)
    progress.demand(lambda: worker in _fired(project), _FIRES_WITHIN_S, f"{_DOWN} of {worker}")
    progress.step(f"{worker}: stopped; {_DOWN} fires")
    project.start(worker)
    project.await_healthy([worker])
    progress.demand(lambda: not _fired(project), _FIRES_WITHIN_S, f"the end of {_DOWN}")
    progress.step(f"{worker}: started again; no rule fires")


def _targets(project: Project) -> list[dict[str, Any]]:
    found = _ask(project, "targets").get("activeTargets", [])
    return [one for one in found if one["labels"]["job"] not in _NOT_STARTED]


def _down(project: Project) -> list[str]:
    targets = _targets(project)
    away = [one for one in targets if one["health"] != "up"]
    return [f"{one['labels']['instance']} ({one['lastError']})" for one in away] if targets else ["all"]


def _fired(project: Project) -> set[str]:
    """Return the services of which the rule fires."""
    alerts = _ask(project, "alerts").get("alerts", [])
    mine = [one for one in alerts if one["labels"]["alertname"] == _DOWN and one["state"] == "firing"]
    return {one["labels"]["instance"].partition(":")[0] for one in mine}


def _ask(project: Project, what: str) -> dict[str, Any]:
    try:
        url = f"http://127.0.0.1:{project.ports['PROMETHEUS_PORT']}/api/v1/{what}"
        with urllib.request.urlopen(url, timeout=5) as answer:
            found: dict[str, Any] = json.load(answer)["data"]
            return found
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return {}

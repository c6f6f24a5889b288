"""Limits of time and a baseline of the same run: a slow machine passes, a restart that has become slow does not."""

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from clients.events import DeviceEvent
from facade.icd.load import load
from facade.reading import Quality
from proving.demo.options import DemoOptions
from proving.demo.report import DemoReport, print_figures, print_verdict
from proving.demo.scenario import passed_limits, slowness
from proving.demo.system import Demo
from proving.demo.timing import Spread, event_rates

ICD = load()
KEY = ("a/b/1", "heapRate")


def passed(judged: DemoReport, **options: Any) -> list[str]:
    return passed_limits(DemoOptions(**options), ICD, judged)


def report(*baselines: float, recovery: float = 2.0, **changed: Any) -> DemoReport:
    """Return the report of a run in which a device server with nothing in it took so long each time."""
    values = {
        "began": 0.0,
        "nodes": 4,
        "rate": 31_800.0,
        "seconds": 30.0,
        "balanced": True,
        "baselines": list(baselines),
        "slowness": slowness(baselines),
        "drained_after": 1.0,
        "invalid_after": 3.0,
        "worker_recovery": 6.0,
        "server_recovery": recovery,
        "subarray_recovery": 2.0,
        "alerts_recovery": 2.0,
        "controller_recovery": 6.0,
        "notification_latency": Spread(p50=1.0, p99=2.0, longest=3.0, count=1),
    }
    return DemoReport(**{**values, **changed})


@pytest.mark.parametrize("controller", [True, False])
def test_a_controller_of_ones_own_needs_none_of_the_demo(tmp_path: Path, controller: bool) -> None:
    """D9: the one of the README beside the demo's executed each command a second time."""
    started: list[Any] = []
    demo: Any = SimpleNamespace(
        deployment=SimpleNamespace(
            instances=[], worker=started.append, launch=lambda name, *words, **_: started.append(name)
        ),
        options=DemoOptions(controller=controller),
        executions_file=tmp_path / "none",
    )
    Demo.start_servers(demo)
    assert ("controller" in started) is controller


def events(*received: float) -> list[DeviceEvent]:
    return [DeviceEvent(value=time, quality=Quality.VALID, time=time, received=time) for time in received]


@pytest.mark.parametrize(
    ("longest", "verdict"), [(2_900.0, "2.90 s late: kept"), (409.0, "0.50 s late: too close, a failure")]
)
def test_the_report_says_whether_the_closest_events_are_a_failure_and_by_which_limit(
    longest: float, verdict: str
) -> None:
    """F8: it printed six events within 0.21 s beside the 0.5 s of the ICD, and counted no failure."""
    pace = event_rates({KEY: events(1.0, 2.0, 5.0, 5.05, 5.1, 5.15, 5.18, 5.21)}, {KEY: 0.5}, [])
    judged = report(pace=pace, window_latency_undisturbed=Spread(p50=200.0, p99=400.0, longest=longest, count=250))
    judged.failures = passed(judged)
    (line,) = (line for line in printed(judged) if line.startswith("closest events"))
    assert "6 within 0.21 s (a/b/1/heapRate; the ICD has 0.5 s between two, and one of them may have come " in line
    assert verdict in line
    assert len(judged.failures) == ("failure" in verdict)


def printed(of: DemoReport) -> list[str]:
    console = Console(record=True, width=200, file=io.StringIO())
    print_figures(console, of)
    print_verdict(console, of, Path("report.json"))
    return console.export_text().splitlines()

"""Limits of time and a baseline of the same run: a slow machine passes, a restart that has become slow does not."""

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from facade.kernel.icd.load import load
from sdp_facade_lab.demo.options import DemoOptions
from sdp_facade_lab.demo.report import DemoReport, print_figures, print_verdict
from sdp_facade_lab.demo.scenario import passed_limits, slowness
from sdp_facade_lab.demo.system import Demo
from sdp_facade_lab.demo.timing import Spread

ICD = load()


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
        "recoveries": {"worker": 6.0, "server": recovery, "tables": 100.0},
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


@pytest.mark.parametrize(
    ("baselines", "recovery", "failures"),
    [((1.0,), 4.9, 0), ((1.0,), 5.1, 1), ((4.5,), 14.9, 0), ((4.5,), 15.1, 1), ((1.0, 4.5), 14.9, 0)],
)
def test_a_slow_machine_has_longer_limits(baselines: tuple[float, ...], recovery: float, failures: int) -> None:
    judged = report(*baselines, recovery=recovery)
    judged.failures = passed(judged)
    assert len(judged.failures) == failures
    assert any("device server killed and started again: values back" in line for line in printed(judged))
    assert ("This machine takes 3.0 times as long" in " ".join(printed(judged))) is (4.5 in baselines)


def test_a_demo_that_saw_no_event_has_failed() -> None:
    assert passed(report(notification_latency=None)) == ["events: expected some of heapRate, got none"]


def printed(of: DemoReport) -> list[str]:
    console = Console(record=True, width=200, file=io.StringIO())
    print_figures(console, of)
    print_verdict(console, of, Path("report.json"))
    return console.export_text().splitlines()

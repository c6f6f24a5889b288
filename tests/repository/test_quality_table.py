"""The table of what holds for flows and parts: each claim has its evidence, and the page is the one that it makes."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests import quality


def test_each_claim_has_its_evidence() -> None:
    assert list(quality.faults(quality.read())) == []


def test_the_page_is_made_from_the_table() -> None:
    assert quality.page(quality.read()) == quality.PAGE.read_text(), "run python -m tests.quality"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda one: one.pop("measured"), "flow.alerts: missing measured; expected "),
        (lambda one: one.update(lifecycle="old"), "flow.alerts.lifecycle: expected one of stable, trial, internal, "),
        (lambda one: one.update(counted="prove nothing"), "flow.alerts.counted: prove: expected one of alerts, "),
        (lambda one: one.update(counted="prove logs"), "flow.alerts.counted: lab/sdp_facade_lab/fault_runs/logs.py: "),
        (
            lambda one: one.update(restarted="tests/flows/test_alerts.py::test_no"),
            "flow.alerts.restarted: tests/flow",
        ),
        (lambda one: one.update(counted="tests/flows/test_alerts.py"), "flow.alerts.counted: expected a page, a test "),
        (lambda one: one.update(documented="docs/how-to/send-quality.md"), "flow.alerts.documented: docs/how-to/send"),
        (lambda one: one.update(on_the_page="manifest"), "flow.alerts.on_the_page: expected a `page` in the manifest"),
        (lambda one: one.update(simulated={"exempt": ""}), "flow.alerts.simulated: expected evidence, "),
    ],
)
def test_a_claim_without_evidence_is_named(change: Callable[[dict[str, Any]], Any], told: str) -> None:
    claims = copy.deepcopy(quality.read())
    change(claims["flow"]["alerts"])
    (fault,) = quality.faults(claims)
    assert fault.startswith(told)

"""The schedule of a cluster's accidents, and which of them this machine can have."""

import pytest

from sdp_facade_lab.fault_runs import accidents
from sdp_facade_lab.fault_runs.accidents import KINDS, kinds_here, schedule


def test_each_kind_comes_once_before_any_comes_again_and_a_shorter_run_is_the_beginning_of_a_longer_one():
    long = schedule(7, 2 * len(KINDS))
    for half in (long[: len(KINDS)], long[len(KINDS) :]):
        assert sorted((one.deed, one.to) for one in half) == sorted(KINDS)
    assert schedule(7, 5) == long[:5]


@pytest.mark.parametrize(
    ("can_cut", "secured", "faketime", "missing"),
    [
        (True, True, True, set()),
        (False, True, True, {accidents.CUT, accidents.APART}),
        (True, False, True, {accidents.CERTIFICATES}),
        (True, True, False, {accidents.CLOCK, accidents.CERTIFICATES}),
    ],
)
def test_only_possible_accidents_happen(
    monkeypatch: pytest.MonkeyPatch, can_cut: bool, secured: bool, faketime: bool, missing: set[str]
):
    monkeypatch.setattr(accidents, "find_faketime", lambda: "library" if faketime else None)
    found = {deed for deed, _ in kinds_here(can_cut=can_cut, secured=secured)}
    assert {deed for deed, _ in KINDS} - found == missing

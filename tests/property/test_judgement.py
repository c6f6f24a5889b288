"""Whether all is well: whatever SDP finds wrong, and whatever the alarms are, the answer can be followed."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from facade.kernel.findings import DEGRADED, FAILED, NOTE, OK, UNKNOWN
from facade.kernel.icd.load import load
from facade.kernel.severities import CRITICAL, SEVERITIES
from facade.sdp import alarm_states as states
from facade.sdp.judgement import rank
from sdp_facade_clients.status import Seen, judge
from tests.support.overview import health_of, issues_of, judgement_of, overview, signs_of_life

CONDITIONS = load().conditions
SILENCED = {states.SHLVD, states.DSUPR, states.OOSRV}
NAMES = st.sampled_from(["serverGone", "streamLagging", "storageLow", "ofNobody"])
SOURCES = st.sampled_from(["sdp-facade/ingest-00", "sdp-facade/quality", "ingest/0001"])
ALARMS = st.lists(
    st.fixed_dictionaries(
        {
            "condition": NAMES,
            "source": SOURCES,
            "state": st.sampled_from([*states.STATES[1:], *SILENCED]),
            "severity": st.sampled_from(SEVERITIES),
            "text": st.just("text"),
            "occurrence": st.integers(1, 9),
        }
    ),
    max_size=20,
    unique_by=lambda one: (one["condition"], one["source"]),
)
OF_ALARM = st.fixed_dictionaries({"condition": NAMES, "source": SOURCES})
OF_DEVICE = st.fixed_dictionaries({"device": st.sampled_from(["mid-sdp/alerts/0", "mid-sdp/quality/01"])})
MORE = st.fixed_dictionaries({}, optional={"severity": st.sampled_from(SEVERITIES), "response": st.just("Do it.")})
ISSUES = st.lists(
    st.builds(
        lambda health, of, more: {"health": health, "text": "wrong", **of, **more},
        st.sampled_from([DEGRADED, FAILED]),
        OF_ALARM | OF_DEVICE | st.just({}),
        MORE,
    ),
    max_size=6,
)


def master(health, issues):
    return {"State": "ON", "healthState": health, "healthInfo": (), "healthIssues": tuple(map(json.dumps, issues))}


ANSWERS = ISSUES.flatmap(
    lambda issues: st.sampled_from([one["health"] for one in issues] or [OK, UNKNOWN]).map(
        lambda health: master(health, issues)
    )
)
WHY = st.sampled_from(["", "is not exported"])
DEVICES = st.sampled_from([{"State": one, "Status": f"In {one}.\nmore"} for one in ("ON", "ALARM", "UNKNOWN", "FAULT")])


@given(
    st.builds(
        Seen,
        servers=st.fixed_dictionaries({"control": WHY, "ingest-00": WHY}),
        master=st.none() | ANSWERS,
        bus=st.none() | DEVICES,
        alerts=st.none() | DEVICES,
        alarms=st.none() | ALARMS,
        workers=st.fixed_dictionaries({"workersAlive": st.integers(0, 2), "workersWanted": st.integers(0, 2)}),
    )
)
def test_ok_is_never_beside_an_alarm_that_waits_and_each_reason_has_its_remedy(seen: Seen) -> None:
    judged = judge(seen, CONDITIONS)
    waiting = [one for one in seen.alarms or () if one["state"] in states.UNACKNOWLEDGED]
    if waiting:
        assert judged.state != OK
        assert not judged.is_idle
    if any(one.do for one in judged.findings):
        assert not judged.is_idle
    if seen.master is not None and seen.alarms is not None and judged.state == OK:
        silenced = {(one["condition"], one["source"]) for one in seen.alarms if one["state"] in SILENCED}
        told = [json.loads(one) for one in seen.master["healthIssues"]]
        left = [one for one in told if (one.get("condition"), one.get("source")) not in silenced]
        assert all(one.get("device") == "mid-sdp/alerts/0" for one in left)
    ranks = [rank(one) for one in judged.findings]
    assert ranks == sorted(ranks)
    severities = [SEVERITIES.index(one.severity) for one in judged.findings]
    assert severities == sorted(severities, reverse=True), "CRITICAL first"
    for one in judged.findings:
        assert one.level == NOTE or one.do, one
        assert one.text
    if seen.alarms is not None:
        shown = {one.alarm for one in judged.findings}
        hidden = {f"{one['condition']}@{one['source']}" for one in seen.alarms if one["state"] in SILENCED}
        assert not shown & hidden, "what a person has silenced, or another alarm explains, is counted only"


@pytest.mark.parametrize("state", sorted(states.UNACKNOWLEDGED))
def test_sdp_master_does_not_say_that_all_is_well_beside_an_alarm_that_waits(state: str) -> None:
    alarm = {"condition": "serverGone", "source": "sdp-facade/ingest-00", "severity": "CRITICAL", "text": "gone"}
    shown = overview()
    assert judgement_of(shown).is_idle
    shown._flows[0].alarms = lambda: [alarm | {"state": state}]
    judged = judgement_of(shown)
    assert health_of(shown)[0] == OK, "healthState is for programs"
    assert judged.state != OK
    assert [one.alarm for one in judged.findings] == ["serverGone@sdp-facade/ingest-00"]


def test_every_reason_of_sdp_master_has_an_instruction_and_the_gravest_is_first() -> None:
    shown = overview(
        heartbeats=signs_of_life(
            silent=("SdpFacade-ingest-00", "aggregate-0"),
            complaints={"SdpFacade-quality": [("mid-sdp/quality/01", "state is ALARM: x")]},
        ),
        lagging={"ingest.summary": 10**9},
        unbalanced=("logs",),
        controllers={},
        reporting=(0, 2, 3),
    )
    issues = issues_of(shown)
    assert len(issues) >= 7
    assert all(one.get("response") or CONDITIONS[one["condition"]].response for one in issues)
    order = [SEVERITIES.index(one["severity"]) for one in issues]
    assert order == sorted(order, reverse=True)
    assert issues[0]["severity"] == CRITICAL
    lines = health_of(shown)[1]
    assert [one["text"] for one in issues] == [*lines]

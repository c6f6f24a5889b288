"""Dashboard and alerting rules name only metrics, labels and streams that the processes serve."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from facade.kernel.outcome import RecordRejected
from facade.kernel.runtime import metrics
from facade.kernel.runtime.accounts import RunningAccount
from tests.support.docker import DOCKER, ICD
from tests.support.waiting import HANG

DASHBOARD = json.loads((DOCKER / "grafana" / "dashboards" / "sdp-facade.json").read_text())
RULES, STATUS_RULES = (
    group["rules"] for group in yaml.safe_load((DOCKER / "prometheus" / "rules.yml").read_text())["groups"]
)
SCRIPT = Path(__file__).parents[2] / "packaging" / "prometheus" / "sdp_status_metrics.py"
NOT_OURS = {"up", "kafka_consumergroup_lag", "kafka_consumergroup_current_offset"}
"""Of Prometheus itself and of kafka-exporter: a lag must be seen also while its worker is dead."""
WORDS = {"sum", "by", "rate", "increase", "delta", "max", "abs", "count", "vector", "or", "and", "on", "label_values"}


def expressions() -> Iterator[str]:
    for panel in DASHBOARD["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    for variable in DASHBOARD["templating"]["list"]:
        yield variable["query"]["query"]
    yield from (rule["expr"] for rule in RULES)


def names(expression: str) -> set[str]:
    bare = re.sub(r"\{[^}]*\}|\bby \([^)]*\)|\bon \([^)]*\)|\[[^\]]*\]|, stream\)", "", expression)
    return set(re.findall(r"[a-z_]\w*", bare)) - WORDS


@pytest.fixture(scope="module")
def served() -> dict[str, set[str]]:
    accounts = {}
    for topic in ICD.topics:
        accounts[topic] = account = RunningAccount()
        account.consumed = 1
        account.settle(RecordRejected("not-json", "$", ""))
    registries: list[CollectorRegistry] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(metrics.VARIABLE, "1")
        patch.setattr("prometheus_client.start_http_server", lambda *_, registry, **__: registries.append(registry))
        metrics.serve_metrics(accounts)
    text = generate_latest(registries[0]).decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {sample.name: set(sample.labels) for sample in samples}


def test_every_metric_is_served(served: dict[str, set[str]]) -> None:
    used = set().union(*map(names, expressions()))
    assert used <= set(served) | NOT_OURS
    assert {name for name in served if name.startswith("sdp_")} <= used, "what is served is worth to be shown"


def test_every_label_that_is_selected_is_served(served: dict[str, set[str]]) -> None:
    for expression in expressions():
        for name, selected in re.findall(r"(sdp_\w+)\{([^}]*)\}", expression):
            assert set(re.findall(r"(\w+)=", selected)) <= served[name] | {"job", "instance"}, expression


def test_lag_is_judged_by_the_limits_of_the_icd() -> None:
    found = [topic.account.lag for topic in ICD.topics.values() if topic.account and topic.account.lag]
    text = {rule["alert"]: rule["expr"] for rule in RULES}
    for limits in found:
        assert text["SdpGroupLags"].endswith(f"> {limits.max_warning:.0f}")
        assert text["SdpGroupLagsFar"].endswith(f"> {limits.max_alarm:.0f}")
    assert found


def test_the_rules_about_the_status_use_what_the_script_of_a_site_writes(tmp_path: Path) -> None:
    program = tmp_path / "sdp-facade"
    alarm = {"condition": "lowDisk", "source": 'node "7"', "severity": "CRITICAL", "state": "UNACK", "text": "..."}
    program.write_text(f"#!/bin/sh\n[ $1 = status ] && exit 2\necho '{json.dumps([alarm])}'\n")
    program.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    subprocess.run([sys.executable, SCRIPT, tmp_path], env=environment, timeout=HANG, check=True)
    families = text_string_to_metric_families((tmp_path / "sdp.prom").read_text())
    samples = {sample.name: sample for family in families for sample in family.samples}
    assert samples["sdp_status"].value == 2.0
    assert samples["sdp_alarm"].labels == {name: value for name, value in alarm.items() if name != "text"}
    used = {word for rule in STATUS_RULES for word in re.findall(r"sdp_\w+", rule["expr"])}
    assert used == set(samples)


def test_a_label_of_the_script_is_read_as_it_is(tmp_path: Path) -> None:
    alarms = [
        {"condition": "storageLow", "source": source, "severity": "ALARM", "state": "UNACK"}
        for source in ("r\u00e9cepteur/3", "a\tb", 'a"b', "a\\nb", "a\nb", "\\")
    ]
    program = tmp_path / "sdp-facade"
    program.write_text(f"#!{sys.executable}\nprint({json.dumps(json.dumps(alarms))})\n")
    program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run([sys.executable, SCRIPT, tmp_path], env=environment, timeout=HANG, check=True)
    families = text_string_to_metric_families((tmp_path / "sdp.prom").read_text())
    found = [sample.labels for family in families for sample in family.samples if sample.name == "sdp_alarm"]
    assert found == alarms

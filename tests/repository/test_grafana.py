"""Dashboard and alerting rules name only metrics, labels and streams that the processes serve."""

import json
import re
import shutil
import subprocess
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
from tests.support.server_in_memory import serve

pytestmark = pytest.mark.needs("repository")

DASHBOARD = json.loads((DOCKER / "grafana" / "dashboards" / "sdp-facade.json").read_text())
RULES = [
    rule
    for group in yaml.safe_load((DOCKER / "prometheus" / "rules.yml").read_text())["groups"]
    for rule in group["rules"]
]
KAFKA_EXPORTER = {"kafka_consumergroup_lag", "kafka_consumergroup_current_offset"}
NODE_EXPORTER = {"node_filesystem_avail_bytes", "node_filesystem_size_bytes"}
NOT_OURS = {"up", *KAFKA_EXPORTER, *NODE_EXPORTER}
OPTIONAL = {"sdp_history_records", "sdp_history_dropped_records"}
"""Only with SDP_HISTORY."""
WORDS = {
    "absent",
    "min",
    "sum",
    "by",
    "rate",
    "increase",
    "delta",
    "max",
    "abs",
    "count",
    "vector",
    "or",
    "and",
    "on",
    "label_values",
}


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
    accounts, families = {}, []
    for instance in ("control", "subarray", "alerts"):
        families += serve(instance).server.metrics
    for topic in ICD.topics:
        accounts[topic] = account = RunningAccount()
        account.consumed = 1
        account.settle(RecordRejected("not-json", "$", ""))
    registries: list[CollectorRegistry] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(metrics.VARIABLE, "1")
        patch.setattr("prometheus_client.start_http_server", lambda *_, registry, **__: registries.append(registry))
        metrics.serve_metrics(accounts, families)
    text = generate_latest(registries[0]).decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    labels = {one.name + "_total" * one.is_counter: set(one.labels) for one in families}
    return labels | {sample.name: set(sample.labels) for sample in samples}


def test_every_metric_is_served(served: dict[str, set[str]]) -> None:
    used = set().union(*map(names, expressions()))
    assert used <= set(served) | NOT_OURS
    assert {name for name in served if name.startswith("sdp_")} - OPTIONAL <= used, (
        "what is served is worth to be shown"
    )


def test_every_label_that_is_selected_is_served(served: dict[str, set[str]]) -> None:
    for expression in expressions():
        for name, selected in re.findall(r"(sdp_\w+)\{([^}]*)\}", expression):
            assert set(re.findall(r"(\w+)=", selected)) <= served[name] | {"job", "instance"}, expression


def test_lag_is_judged_by_the_limits_of_the_icd() -> None:
    found = [topic.account.lag for topic in ICD.topics.values() if topic.account and topic.account.lag]
    text = {rule["alert"]: rule["expr"] for rule in RULES}
    for limits in found:
        assert text["SdpStreamLags"].endswith(f"> {limits.max_warning:.0f}")
        assert text["SdpStreamLagsFar"].endswith(f"> {limits.max_alarm:.0f}")
    assert found


PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is missing: install Debian's package prometheus")


def promtool(*words: object) -> None:
    done = subprocess.run([str(PROMTOOL), *map(str, words)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_promtool_accepts_rules_and_configuration() -> None:
    promtool("check", "config", DOCKER / "prometheus" / "prometheus.yml")  # with the rules that it names


HEALTH = 'sdp_device_health{device_class="SdpMaster",device="mid-sdp/control/0",health="%s"}'
FIRING = [
    (f"{HEALTH % 'FAILED'} 1x10", "2m", "SdpFailed", True),
    (f"{HEALTH % 'OK'} 1x10", "8m", "SdpFailed", False),
    (f"{HEALTH % 'OK'} 1x10", "8m", "SdpHealthUnknown", False),
    ("up 1x10", "8m", "SdpHealthUnknown", True),
    ('sdp_alarms{condition="storageLow",severity="CRITICAL",state="UNACK"} 2x10', "6m", "SdpAlarm", True),
    ('sdp_alarms{condition="storageLow",severity="CRITICAL",state="ACKED"} 2x10', "6m", "SdpAlarm", False),
    ('sdp_command_outcomes_total{device_class="S",outcome="TIMED_OUT"} 0 0 1x9', "4m", "SdpCommandsUnanswered", True),
    ('sdp_command_outcomes_total{device_class="S",outcome="COMPLETED"} 0+1x9', "4m", "SdpCommandsUnanswered", False),
    ('sdp_stream_lag_records{stream="ingest.heaps"} 200000x10', "3m", "SdpStreamLags", True),
    ('sdp_stream_lag_records{stream="ingest.heaps"} 200000x10', "3m", "SdpStreamLagsFar", False),
]


@needs_promtool
def test_rules_fire_for_what_they_name_and_not_otherwise(tmp_path: Path) -> None:
    cases = []
    for line, at, alert, fires in FIRING:
        series, values = line.split(" ", 1)
        firing = f'count(ALERTS{{alertname="{alert}", alertstate="firing"}})'
        expected = [{"labels": "{}", "value": 1}] if fires else []
        query = {"expr": firing, "eval_time": at, "exp_samples": expected}
        given = [{"series": series, "values": values}]
        cases.append({"interval": "1m", "input_series": given, "promql_expr_test": [query]})
    written = {"rule_files": [str(DOCKER / "prometheus" / "rules.yml")], "tests": cases}
    (tmp_path / "cases.yml").write_text(yaml.safe_dump(written))
    promtool("test", "rules", tmp_path / "cases.yml")

"""docker/helm: the chart renders what kustomize does, and follows a site's values."""

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from facade import __version__
from facade.kernel import config
from facade.kernel.instances import instances
from facade.kernel.manifest import manifests
from tests.support.docker import DOCKER, ICD, SEARCHED, documents, parse, read_by_the_code

pytestmark = pytest.mark.needs("repository")

CHART = DOCKER / "helm" / "sdp-facade"
BASE = DOCKER / "kubernetes" / "base"
KUBERNETES = "1.32.4"
HELM = shutil.which("helm", path=SEARCHED)
needs_helm = pytest.mark.skipif(HELM is None, reason="helm is missing: `make chart` gets it")
(SITE,) = documents(CHART / "values-site.yaml")


def helm(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(HELM), *words], capture_output=True, text=True, check=False)


@cache
def rendered(*words: str) -> list[dict[str, Any]]:
    done = helm("template", "sdp", str(CHART), "--kube-version", KUBERNETES, *words)
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def site() -> list[dict[str, Any]]:
    return rendered("--values", str(CHART / "values-site.yaml"))


def of_kind(kind: str, objects: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {one["metadata"]["name"]: one for one in objects if one["kind"] == kind}


def container(one: dict[str, Any]) -> dict[str, Any]:
    (only,) = one["spec"]["template"]["spec"]["containers"]
    return only


def comparable(one: dict[str, Any]) -> tuple[tuple[str, str], dict[str, Any]]:
    """Return an object without what Helm and Kustomize have each in their own way: names that change with content."""
    text = re.sub(r"\bsdp-facade-[a-z0-9]{10}\b", "sdp-facade", yaml.safe_dump(one))
    one = yaml.safe_load(text)
    name = one["metadata"]["name"] = re.sub(r"-1$", "", one["metadata"]["name"])
    if template := one.get("spec", {}).get("template"):
        annotations = template["metadata"].get("annotations", {})
        annotations.pop("checksum/settings", None)
        template["metadata"]["annotations"] = annotations
        template["spec"]["volumes"].sort(key=lambda volume: volume["name"])
    one["metadata"].setdefault("labels", {})
    return (one["kind"], name), one


def test_the_chart_has_the_version_of_the_facade_and_settings_that_are_read() -> None:
    (chart,) = documents(CHART / "Chart.yaml")
    assert chart["version"] == chart["appVersion"] == __version__
    assert SITE["settings"].keys() <= read_by_the_code()
    assert (CHART / "files" / "base").resolve() == BASE


@needs_helm
def test_helm_finds_no_fault() -> None:
    done = helm("lint", "--strict", str(CHART), "--kube-version", KUBERNETES)
    assert done.returncode == 0, done.stdout


@needs_helm
@pytest.mark.parametrize(
    ("components", "values"),
    [
        ((), ()),
        (("page", "sign-in", "notify", "olog"), ("page.enabled", "page.oidc", "notify.enabled", "olog.enabled")),
    ],
)
def test_it_renders_what_kustomize_does(components: Sequence[str], values: Sequence[str], tmp_path: Path) -> None:
    kubectl = shutil.which("kubectl")
    kustomize = os.environ.get("KUSTOMIZE") or shutil.which("kustomize", path=SEARCHED)
    if not (kubectl or kustomize):
        pytest.skip("neither kustomize nor kubectl is installed")
    argv = [kustomize, "build"] if kustomize else [kubectl, "kustomize"]
    used = [os.path.relpath(BASE.parent / "components" / name, tmp_path.resolve()) for name in (*components, "process")]
    (about,) = documents(BASE / "kustomization.yaml")
    overlay = {
        "kind": "Kustomization",
        "resources": [os.path.relpath(BASE, tmp_path.resolve())],
        "components": used,
        **{name: about[name] for name in ("labels", "images")},
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    done = subprocess.run([*map(str, argv), str(tmp_path)], capture_output=True, text=True, check=True)
    expected = dict(map(comparable, yaml.safe_load_all(done.stdout)))
    found = dict(map(comparable, rendered(*(f"--set={value}=true" for value in values))))
    assert found.keys() == expected.keys()
    for name, one in expected.items():
        assert found[name] == one, name


@needs_helm
def test_instances_follow_the_settings_as_in_the_interface() -> None:
    (settings,) = of_kind("ConfigMap", site()).values()
    known = config.load_settings({**settings["data"], config.FILE_VARIABLE: ""})
    servers = of_kind("Deployment", site())
    del servers["page"]
    assert sorted(servers) == sorted(instances(ICD, known))
    assert len(servers) == 48
    assert all(container(one)["args"][0] == name for name, one in servers.items())
    left = rendered("--set", "settings.SDP_WITHOUT=mirror\\,ingest")
    assert {"mirror", "ingest-00"}.isdisjoint(of_kind("Deployment", left))
    assert "logs" in of_kind("Deployment", left)


@needs_helm
def test_workers_are_those_of_the_flows_and_the_archive_and_who_notifies() -> None:
    found = of_kind("StatefulSet", site())
    assert parse(container(found.pop("alerts-notify"))["args"])["rules"] == "/run/secrets/notify/notify.toml"
    assert parse(container(found.pop("olog"))["args"])["logbook"] == ["SDP"]
    assert found.keys() == {worker.name for one in manifests() for worker in one.workers} | {"archive-run"}
    for one in found.values():
        assert parse(container(one)["args"])["slot"] == "$(SDP_SLOT)"
    assert found["alerts-intake"]["spec"]["replicas"] == 2
    assert container(found["archive-run"])["volumeMounts"][-1]["mountPath"] == "/data/archive"
    assert "--every" in container(found["archive-run"])["args"]


@needs_helm
def test_the_autoscaler_asks_for_the_metric_of_the_facade_and_for_no_more_than_partitions() -> None:
    (scaler,) = of_kind("HorizontalPodAutoscaler", site()).values()
    (metric,) = scaler["spec"]["metrics"]
    assert metric["external"]["metric"]["name"] == "sdp_workers_wanted"
    assert scaler["spec"]["maxReplicas"] == ICD.topics["ingest.heaps"].partitions
    assert "replicas" not in of_kind("StatefulSet", site())["aggregate"]["spec"], "an upgrade would undo its work"


@needs_helm
def test_standbys_wait_on_other_nodes_and_are_not_killed_for_waiting() -> None:
    servers = of_kind("Deployment", site())
    for name in ("control", "subarray", "alerts"):
        assert servers[name]["spec"]["replicas"] == 2
        assert container(servers[name])["args"] == [name, "--standby"]
        assert "livenessProbe" not in container(servers[name]), "a standby serves no metrics"
        assert "affinity" in servers[name]["spec"]["template"]["spec"]
    assert servers["logs"]["spec"]["strategy"] == {"type": "Recreate"}
    refused = helm("template", "sdp", str(CHART), "--kube-version", KUBERNETES, "--set", "standbys.logs=1")
    assert "standbys: expected some of control, subarray and alerts, got logs" in refused.stderr


@needs_helm
def test_each_workload_with_several_pods_has_a_budget() -> None:
    several = {
        name
        for kind in ("Deployment", "StatefulSet")
        for name, one in of_kind(kind, site()).items()
        if one["spec"].get("replicas", 2) > 1
    }
    assert (
        of_kind("PodDisruptionBudget", site()).keys()
        == several
        == {*("control", "subarray", "alerts", "aggregate", "alerts-intake")}
    )


@needs_helm
def test_a_process_may_have_a_login_and_resources_of_its_own() -> None:
    def secret(one: dict[str, Any]) -> str:
        return next(v["secret"]["secretName"] for v in one["spec"]["template"]["spec"]["volumes"] if "secret" in v)

    workers = of_kind("StatefulSet", site())
    assert (secret(workers["aggregate"]), secret(workers["logs-aggregate"])) == ("sdp-aggregate", "sdp-facade")
    assert container(workers["aggregate"])["resources"] == SITE["resources"]["aggregate"]
    assert of_kind("Deployment", site())["page"]["spec"]["template"]["spec"]["volumes"][-1]["name"] == "tokens"


@needs_helm
def test_what_is_rendered_fits_the_schemas() -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    kinds = {(one["kind"], "strategy" in one.get("spec", {})): one for one in site()}
    for one in [*kinds.values(), *of_kind("Deployment", site()).values()][:20]:
        validator.validate(one, KUBERNETES.rpartition(".")[0], strict=True)


def test_files_of_the_chart_are_links_that_a_checkout_has() -> None:
    for name in ("base", "process", "page", "notify", "olog"):
        link = CHART / "files" / name
        assert link.is_symlink()
        assert [*link.glob("*.yaml")], f"{link}: expected the files of kustomize"

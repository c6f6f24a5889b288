"""docker/kubernetes: the base is the default deployment, slots are ordinals, and all fits Kubernetes' schemas."""

import shutil
import subprocess
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from facade.kernel import config
from facade.kernel.config import Settings
from facade.kernel.instances import instances
from facade.kernel.manifest import manifests
from tests.support.docker import DOCKER, ICD, SEARCHED, SERVER, documents, parse, read_by_the_code

pytestmark = pytest.mark.needs("repository")

FOLDER = DOCKER / "kubernetes"
BASE = FOLDER / "base"
MID = FOLDER / "overlays" / "mid"
KINDS = {"Deployment": "device-server", "StatefulSet": "worker", "Job": "task"}
OLDEST = "1.32"
"""The first Kubernetes in which every pod of a StatefulSet has its ordinal as a label for good."""


def resources(folder: Path) -> list[dict[str, Any]]:
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    files = [folder / name for name in kustomization["resources"] if name.endswith(".yaml")]
    return [one for file in files for one in documents(file)]


def of_kind(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [one for one in resources(folder) if one["kind"] == kind]


def container(workload: dict[str, Any]) -> dict[str, Any]:
    (only,) = workload["spec"]["template"]["spec"]["containers"]
    return only


def settings(folder: Path) -> dict[str, str]:
    (generator,) = yaml.safe_load((folder / "kustomization.yaml").read_text())["configMapGenerator"]
    lines = [*generator.get("literals", [])]
    for file in generator.get("envs", []):
        lines += (folder / file).read_text().split()
    return dict(line.split("=", 1) for line in lines)


@cache
def built(folder: Path) -> list[dict[str, Any]]:
    kustomize, kubectl = shutil.which("kustomize", path=SEARCHED), shutil.which("kubectl")
    if not (kustomize or kubectl):
        pytest.skip("neither kustomize nor kubectl is installed")
    argv = [kustomize, "build"] if kustomize else [str(kubectl), "kustomize"]
    done = subprocess.run([*argv, folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def test_each_instance_of_the_deployment_is_there_exactly_once() -> None:
    servers = of_kind(BASE, "Deployment")
    assert Counter(container(one)["args"][0] for one in servers) == Counter(instances(ICD, Settings()))
    further = settings(BASE) | settings(MID)
    site = config.load_settings({**further, config.FILE_VARIABLE: ""})
    servers += of_kind(MID, "Deployment")
    assert Counter(container(one)["args"][0] for one in servers) == Counter(instances(ICD, site))
    for one in servers:
        assert one["metadata"]["name"] == container(one)["args"][0]
        assert container(one)["command"] == [SERVER]
        assert one["spec"]["replicas"] == 1
        assert one["spec"]["strategy"] == {"type": "Recreate"}, "Tango allows one process for each instance"


def test_every_other_command_is_one_of_sdp_facade() -> None:
    for one in [*of_kind(BASE, "StatefulSet"), *of_kind(BASE, "Job")]:
        assert "command" not in container(one)
        options = parse(container(one)["args"])
        assert one["kind"] == "Job" or options["slot"] == "$(SDP_SLOT)", "the ordinal is the slot"


def test_each_kind_of_worker_is_there() -> None:
    found = {one["metadata"]["name"]: tuple(container(one)["args"][:-2]) for one in of_kind(BASE, "StatefulSet")}
    assert found == {worker.name: worker.start for one in manifests() for worker in one.workers}


def test_a_site_may_add_the_page_who_notifies_and_who_posts_to_an_olog() -> None:
    components = FOLDER / "components"
    (notify,) = resources(components / "notify")
    rules = Path(parse(container(notify)["args"])["rules"])
    assert (notify["kind"], notify["spec"]["replicas"]) == ("StatefulSet", 1), "never two at once"
    assert rules.parent in {Path(one["mountPath"]) for one in container(notify)["volumeMounts"]}
    (olog,) = resources(components / "olog")
    login = Path(parse(container(olog)["args"])["login"])
    assert (olog["kind"], olog["spec"]["replicas"]) == ("StatefulSet", 1), "never two at once"
    assert login.parent in {Path(one["mountPath"]) for one in container(olog)["volumeMounts"]}

    (patch,) = yaml.safe_load((components / "sign-in" / "kustomization.yaml").read_text())["patches"]
    (added,) = yaml.safe_load(patch["patch"])
    (page,) = of_kind(components / "page", "Deployment")
    assert patch["target"] == {"kind": "Deployment", "name": page["metadata"]["name"]}
    assert added["value"]["name"] in read_by_the_code()
    assert Path(added["value"]["value"]).parent in {Path(one["mountPath"]) for one in container(page)["volumeMounts"]}
    kept = {one["name"]: one["value"] for one in container(page)["env"]}["SDP_WEB_DISPLAYS"]
    (mounted,) = (one["name"] for one in container(page)["volumeMounts"] if one["mountPath"] == kept)
    (claim,) = of_kind(components / "page", "PersistentVolumeClaim")
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    volumes = {one["name"]: one for one in page["spec"]["template"]["spec"]["volumes"]}
    assert volumes[mounted]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]


def test_the_settings_are_read_and_the_defaults_are_the_same() -> None:
    given, default = settings(BASE), Settings()
    assert set(given) <= read_by_the_code()
    assert set(settings(MID)) <= set(given)
    for variable in set(config.ENVIRONMENT) & set(given) - {"KAFKA_BOOTSTRAP", "SDP_TABLE_DISK"}:
        assert given[variable] == str(getattr(default, config.ENVIRONMENT[variable])), variable


def test_scaling_goes_by_the_group_that_the_worker_is_in_up_to_one_for_each_partition() -> None:
    topics, names = ICD.topics, {one["metadata"]["name"] for one in of_kind(BASE, "StatefulSet")}
    prefix, bootstrap = settings(BASE)["SDP_TOPIC_PREFIX"], settings(BASE)["KAFKA_BOOTSTRAP"]
    for one in documents(FOLDER / "components" / "keda" / "scaling.yaml"):
        target, (trigger,) = one["spec"]["scaleTargetRef"], one["spec"]["triggers"]
        assert target["kind"] == "StatefulSet", "what is scaled must keep its slots"
        assert target["name"] in names
        assert trigger["metadata"]["bootstrapServers"] == bootstrap
        assert trigger["metadata"]["consumerGroup"] == prefix + target["name"]
        topic = topics[trigger["metadata"]["topic"].removeprefix(prefix)]
        assert one["spec"]["maxReplicaCount"] == topic.partitions


def test_what_is_built_fits_the_schemas() -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    # All of a kind are made by the same patch, and each costs a tenth of a second or more.
    one_of_each = {one["kind"]: one for one in [*built(BASE), *documents(BASE / "secret.example.yaml")]}
    assert set(KINDS) < set(one_of_each)
    for one in one_of_each.values():
        validator.validate(one, OLDEST, strict=True)

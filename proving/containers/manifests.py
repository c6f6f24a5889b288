"""docker/kubernetes as `podman kube play` 4.3 takes it: rendered by Kustomize, changed where podman lacks something.

Podman has neither StatefulSets nor Jobs: each of their pods becomes a Pod, with its ordinal put in. A probe by HTTP
needs curl in the image, and no named port. The words of a probe go to a shell. Pods share
volumes of the same name, also empty ones. Each port of a container is published on the machine. At the volume of a
Secret that does not say `optional` podman ends with a nil pointer. What only a cluster has (Services, policies,
budgets) is left out.
"""

import copy
import json
import os
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from facade.infra import tools

_HINT: Final = "of Kubernetes 1.27 or newer: it has Kustomize; or set KUSTOMIZE to the program of that name"
_SLOT: Final = "SDP_SLOT"
_KEPT: Final = ("ConfigMap", "Secret", "Deployment")
_SCRAPE: Final = "import urllib.request as r; r.urlopen('http://127.0.0.1:{port}{path}', timeout=5)"

Manifest = dict[str, Any]


def kustomize(base: Path, folder: Path, *, prefix: str, image: str, settings: dict[str, str]) -> list[Manifest]:
    """Render the base with a site's settings and an empty Secret, in an overlay that is written to a folder.

    Parameters
    ----------
    prefix
        Of the names of all that is made.
    image
        Name and tag of the image of the facade.

    Raises
    ------
    InfraError
        Kustomize is missing or refuses the manifests.
    """
    (folder / "sdp-facade.toml").write_text("")
    name, _, tag = image.rpartition(":")
    overlay = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namePrefix": prefix,
        "resources": [os.path.relpath(base.resolve(), folder.resolve())],
        "configMapGenerator": [
            {
                "name": "sdp-facade",
                "behavior": "merge",
                "literals": [f"{key}={value}" for key, value in settings.items()],
            }
        ],
        "secretGenerator": [{"name": "sdp-facade", "files": ["sdp-facade.toml"]}],
        "images": [{"name": "sdp-tango-facade", "newName": name, "newTag": tag}],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    program = os.environ.get("KUSTOMIZE")
    argv = [program, "build"] if program else [tools.find_program("kubectl", _HINT), "kustomize"]
    return list(yaml.safe_load_all(tools.run([*argv, str(folder)], what="rendering docker/kubernetes")))


def for_podman(manifests: Iterable[Manifest]) -> tuple[list[Manifest], list[str]]:
    """Return what podman plays, and the kinds and names of what is left out."""
    played: list[Manifest] = []
    left_out: list[str] = []
    for one in manifests:
        pods = list(_pods(one))
        if not pods and one["kind"] not in _KEPT:
            left_out.append(f"{one['kind']} {one['metadata']['name']}")
        for manifest in pods or ([copy.deepcopy(one)] if one["kind"] in _KEPT else []):
            if "spec" in manifest:
                _adapt(manifest["spec"].get("template", manifest)["spec"], manifest["metadata"]["name"])
            played.append(manifest)
    return played, left_out


def _pods(workload: Manifest) -> Iterator[Manifest]:
    """Return the pods that a cluster makes of a StatefulSet or a Job; of others it says nothing."""
    if workload["kind"] not in ("StatefulSet", "Job"):
        return
    template, name = workload["spec"]["template"], workload["metadata"]["name"]
    is_job = workload["kind"] == "Job"
    for ordinal in range(1 if is_job else workload["spec"]["replicas"]):
        metadata = template["metadata"] | {"name": name if is_job else f"{name}-{ordinal}"}
        spec = copy.deepcopy(template["spec"])
        for container in spec["containers"]:
            container["args"] = [one.replace(f"$({_SLOT})", str(ordinal)) for one in container["args"]]
            for variable in container.get("env", ()):
                if variable["name"] == _SLOT:
                    del variable["valueFrom"]
                    variable["value"] = str(ordinal)
        yield {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _adapt(spec: Manifest, name: str) -> None:
    renamed = {one["name"]: f"{name}-{one['name']}" for one in spec["volumes"]}
    for one in [*spec["volumes"], *(mount for container in spec["containers"] for mount in container["volumeMounts"])]:
        one["name"] = renamed[one["name"]]
    for volume in spec["volumes"]:
        if "secret" in volume:
            volume["secret"].setdefault("optional", False)
    for container in spec["containers"]:
        ports = {one["name"]: one["containerPort"] for one in container.pop("ports", ())}
        for probe in (container[name] for name in ("startupProbe", "livenessProbe") if name in container):
            if asked := probe.pop("httpGet", None):
                code = _SCRAPE.format(port=ports.get(asked["port"], asked["port"]), path=asked["path"])
                probe["exec"] = {"command": ["python", "-c", code]}
            probe["exec"]["command"] = [shlex.quote(word) for word in probe["exec"]["command"]]


def dump(manifests: Iterable[Manifest]) -> str:
    """Return manifests as a stream, without the aliases that YAML makes of what is the same."""
    return "".join(f"---\n{json.dumps(one)}\n" for one in manifests)

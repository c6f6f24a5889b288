"""The manifests of docker/kubernetes, played by `podman kube play` beside Kafka and the Tango database of Compose.

podman knows neither StatefulSets nor Jobs, so each of their pods is played by itself. Services, network policies,
disruption budgets and the scaling of KEDA are left to a cluster.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from facade.errors import InfraError
from facade.infra import tools
from proving.containers.images import podman
from proving.containers.project import NAME, OTHERS, PREFIX, Project
from proving.progress import Progress

_POD_INDEX: Final = "apps.kubernetes.io/pod-index"
_SECRET: Final = {
    "apiVersion": "v1",
    "kind": "Secret",
    "metadata": {"name": "sdp-facade"},
    "stringData": {"sdp-facade.toml": "# no credentials\n"},
}
_WITHIN_S: Final = 120.0
Document = dict[str, Any]


def pods(workload: Document) -> Iterator[Document]:
    """Return the pods of a Deployment, StatefulSet or Job, as their controllers make them."""
    template, name = workload["spec"]["template"], workload["metadata"]["name"]
    is_set = workload["kind"] == "StatefulSet"
    for number in range(workload["spec"].get("replicas", 1)):
        metadata = {**template["metadata"], "name": f"{name}-{number}" if is_set else name}
        if is_set:
            metadata["labels"] = {**metadata["labels"], _POD_INDEX: str(number)}
        yield {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def _configured(config: Document) -> Iterator[Document]:
    yield {**config, "data": {**config["data"], "SDP_TOPIC_PREFIX": PREFIX}}


_PLAYED: Final[Mapping[str, Callable[[Document], Iterator[Document]]]] = {
    "ConfigMap": _configured,
    "Deployment": pods,
    "Job": pods,
    "StatefulSet": pods,
}


def played(rendered: str) -> list[Document]:
    """Return what podman plays of rendered manifests, with a Secret as a site makes it."""
    found = [one for one in yaml.safe_load_all(rendered) if one]
    return [_SECRET, *(made for one in found if one["kind"] in _PLAYED for made in _PLAYED[one["kind"]](one))]


def run(project: Project, progress: Progress, folder: Path, drive: Callable[[], None]) -> None:
    """Play the base, wait until all answers, and drive it.

    Parameters
    ----------
    drive
        Drives the deployment from outside.

    Raises
    ------
    InfraError
        kubectl is missing, or something does not come about.
    """
    kubectl = tools.find_program("kubectl", "it renders the manifests; Debian has it in kubernetes-client")
    base = Path(__file__).parents[2] / "docker" / "kubernetes" / "base"
    documents = played(tools.run([kubectl, "kustomize", str(base)], what="rendering the manifests"))
    file = folder / "played.yaml"
    file.write_text(yaml.safe_dump_all(documents))
    project.start(*OTHERS)
    project.await_healthy(OTHERS)
    try:
        podman("kube", "play", "--network", f"{NAME}_default", str(file))
        names = [one["metadata"]["name"] for one in documents if one["kind"] == "Pod"]
        progress.step(f"podman plays {len(names)} pods: {', '.join(names)}")
        missing = ["all"]

        def all_answer() -> bool:
            missing[:] = project.missing()
            return not missing

        if progress.wait_until(all_answer, _WITHIN_S, "all device servers and workers") is None:
            logs = podman("ps", "--all", "--format", "{{.Names}} {{.Status}}")
            raise InfraError(f"expected all device servers and workers to live, got {missing}; containers:\n{logs}")
        progress.step("all device servers answer, and SdpMaster misses no worker")
        drive()
    finally:
        podman("kube", "down", str(file))

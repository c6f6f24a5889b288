"""The Kubernetes manifests under podman."""

import copy
import json
import os
import shlex
import subprocess
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import yaml

from facade.infra import tools
from facade.kernel.errors import InfraError
from sdp_facade_lab.containers.images import Images, environment, kill_process, log_of, podman
from sdp_facade_lab.containers.project import NAME, PREFIX, SERVERS, Project, drive
from sdp_facade_lab.progress import ProgressLine

_HINT: Final = "of Kubernetes 1.27 or newer: it has Kustomize; or set KUSTOMIZE to the program of that name"
_SLOT: Final = "SDP_SLOT"
_KEPT: Final = ("ConfigMap", "Secret", "Deployment")
_SCRAPE: Final = "import urllib.request as r; r.urlopen('http://127.0.0.1:{port}{path}', timeout=5)"

KubeManifest = dict[str, Any]


def kustomize(base: Path, folder: Path, *, prefix: str, image: str, settings: dict[str, str]) -> list[KubeManifest]:
    """Render the base with a site's settings and an empty Secret, in an overlay that is written to a folder.

    Parameters
    ----------
    prefix
        Of the names of all that is made.
    image
        Name and tag of the image of the facade.
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


def for_podman(manifests: Iterable[KubeManifest]) -> tuple[list[KubeManifest], list[str]]:
    played: list[KubeManifest] = []
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


def _pods(workload: KubeManifest) -> Iterator[KubeManifest]:
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


def _adapt(spec: KubeManifest, name: str) -> None:
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


def dump(manifests: Iterable[KubeManifest]) -> str:
    return "".join(f"---\n{json.dumps(one)}\n" for one in manifests)


_PREFIX: Final = f"{NAME}-"
_TASKS: Final = ("topics", "register")
_WORKERS: Final = ("aggregate-0", "aggregate-1", "alerts-intake-0", "tables-assemble-0", "logs-aggregate-0")
_KILLED: Final = ("control", "subarray", "alerts", "calibration", "aggregate-0", "alerts-intake-0", "tables-assemble-0")
_PODS_WITHIN_S: Final = 300.0
_USER: Final = "10001"
_PROBE: Final = """\
import os
for folder in ('/', '/opt/sdp-facade', '/etc', '/run/secrets/sdp-facade'):
    try:
        open(os.path.join(folder, 'probe'), 'w')
    except OSError:
        continue
    raise SystemExit('could write to ' + folder)
open('/tmp/probe', 'w').close()
print(open('/proc/1/status').read())
"""


def run(project: Project, images: Images, progress: ProgressLine, folder: Path) -> None:
    """Play the manifests, observe from outside, kill pods' processes, and remove it all."""
    pods = Pods(progress)
    project.prepare(tasks=False)
    settings = {
        "KAFKA_BOOTSTRAP": "kafka:9092",
        "TANGO_HOST": "tango-databaseds:10000",
        "SDP_TOPIC_PREFIX": PREFIX,
    }
    (overlay := folder / "overlay").mkdir()
    base = Path(__file__).parents[3] / "docker" / "kubernetes" / "base"
    rendered = kustomize(base, overlay, prefix=_PREFIX, image=images.ours, settings=settings)
    played, left_out = for_podman(rendered)
    progress.step(f"docker/kubernetes: {len(rendered)} objects are rendered; left out: {', '.join(left_out)}")
    begin = progress.elapsed
    pods.play(played, folder / "played.yaml")
    pods.await_tasks()
    progress.step("the Jobs have ended with exit code 0")
    pods.await_alive([*SERVERS, *_WORKERS])
    progress.demand(lambda: not project.missing(), _PODS_WITHIN_S, "all device servers and workers for SdpMaster")
    progress.step(f"{len(SERVERS) + len(_WORKERS)} pods are alive, {progress.elapsed - begin:.0f} s after the start")
    for name in ("control", "aggregate-0"):
        pods.check_confinement(name)
    project.start("simulate-controller")  # SDP's side is no part of the manifests
    project.await_healthy(["simulate-controller"])

    def kill() -> None:
        for name in _KILLED:
            pods.kill(name)
            progress.step(f"{name}: killed, and started again by podman")
        pods.await_alive([*SERVERS, *_WORKERS])

    drive(project, progress, folder, kill)


class Pods:
    """The pods that podman has made of the manifests."""

    def __init__(self, progress: ProgressLine) -> None:
        self._progress = progress

    def play(self, played: list[KubeManifest], file: Path) -> None:
        file.write_text(dump(played))
        podman("kube", "play", "--network", f"{NAME}_default", str(file))

    def await_tasks(self) -> None:
        for name in _TASKS:
            ended = partial(self._has_ended, name)
            if self._progress.wait_until(ended, _PODS_WITHIN_S, f"the Job {name}") is None:
                said = f"the Job {name}: expected exit code 0, got {self._state(name)}"
                raise InfraError(f"{said}; its log ends:\n{log_of(self._container(name))}")

    def await_alive(self, names: list[str]) -> None:
        for name in names:
            if self._progress.wait_until(partial(self._is_alive, name), _PODS_WITHIN_S, f"liveness of {name}") is None:
                said = f"{name}: not alive within {_PODS_WITHIN_S:g} s, {self._state(name)}"
                raise InfraError(f"{said}; its log ends:\n{log_of(self._container(name))}")

    def check_confinement(self, name: str) -> None:
        said = podman("exec", self._container(name), "python", "-c", _PROBE)
        status = dict(line.split(":\t", 1) for line in said.splitlines() if ":\t" in line)
        found = status["Uid"].split()[0], status["NoNewPrivs"], int(status["CapEff"], 16), int(status["CapBnd"], 16)
        if found != (_USER, "1", 0, 0):
            raise InfraError(f"{name}: expected user {_USER}, no new privileges and no capabilities, got {found}")
        self._progress.step(
            f"{name}: user {_USER}, no capabilities, the root file system is read-only, and /tmp is not"
        )

    def kill(self, name: str) -> None:
        kill_process(self._container(name), self._progress)

    def _has_ended(self, name: str) -> bool:
        return self._state(name) == ("exited", 0)

    def _is_alive(self, name: str) -> bool:
        """Ask for readiness, and then for liveness: podman kills a pod of which the latter fails often."""
        ready = ["podman", "exec", self._container(name), "python", "/opt/sdp-facade/healthcheck.py"]
        alive = ["podman", "healthcheck", "run", self._container(name)]
        return all(
            subprocess.run(argv, env=environment(), capture_output=True, check=False).returncode == 0
            for argv in (ready, alive)
        )

    def _state(self, name: str) -> tuple[str, int]:
        state = json.loads(podman("inspect", "--format", "{{json .State}}", self._container(name)))
        return state["Status"], state["ExitCode"]

    def _container(self, name: str) -> str:
        of_deployment = "-pod-0" if name in SERVERS else ""
        return f"{_PREFIX}{name}{of_deployment}-facade"

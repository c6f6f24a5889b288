"""A Compose project under podman: its phases, its services, and an observation from outside."""

import json
import os
import random
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import tango

from facade.admin.quotas import name_of
from facade.flows.alerts.source import AlertSource
from facade.infra import tools
from facade.infra.security import Security
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.kafka.producer import KafkaWriter
from facade.kernel.bus.port import BusHealth
from facade.kernel.clock import SystemClock
from facade.kernel.config import FILE_VARIABLE, load_settings
from facade.kernel.errors import InfraError
from facade.kernel.names import SERVER
from sdp_facade_lab.containers.images import LOCAL, environment, kill_process, log_of, podman
from sdp_facade_lab.demo.plan import OBSERVATION, JournalWriter
from sdp_facade_lab.demo.tm import Commanded
from sdp_facade_lab.progress import ProgressLine


class Phases:
    """The phases of a run and their durations."""

    def __init__(self, progress: ProgressLine) -> None:
        self.progress = progress
        self._begun: list[tuple[str, float]] = []

    @property
    def current(self) -> str:
        """Return the name of the phase that is under way."""
        return self._begun[-1][0] if self._begun else "preparation"

    def begin(self, name: str) -> None:
        """End the phase that is under way, and begin another one."""
        self._begun.append((name, self.progress.elapsed))

    def __str__(self) -> str:
        ends = [begin for _, begin in self._begun[1:]] + [self.progress.elapsed]
        took = zip(self._begun, ends, strict=True)
        return ", ".join(f"{name} {end - begin:.0f} s" for (name, begin), end in took)


_SHOWN_WITHIN_S: Final = 300.0
"""Longest wait [s]; it is no judgement of pace, only the sign of a hang."""


NAME: Final = "sdp-facade-containers"
"""Of the project: all that it makes begins so."""
PREFIX: Final = "containers."
"""Of the topics."""
BROKERS: Final = {"kafka": "KAFKA_PORT", "kafka-2": "KAFKA_2_PORT", "kafka-3": "KAFKA_3_PORT"}
"""Brokers of docker/cluster.yaml by service, with the variables of their ports; docker/compose.yaml has the first."""
_PORTS: Final = ("TANGO_PORT", "PROMETHEUS_PORT", "PAGE_PORT", *BROKERS.values())
SERVERS: Final = ("control", "subarray", "alerts", "calibration", "quality", "mirror", "logs", "ingest-00")
"""Services that are device servers, by their instances."""
_SECRETS: Final = ("tango-db-password", "grafana-password", "taranta-secret")
_EMPTY: Final = ("sdp-facade.toml", "page-tokens")
"""Of its secrets those that may stay empty."""
_HEALTHY_WITHIN_S: Final = 300.0
"""Longest wait until a service is healthy, counted from when the service before it was [s]."""
_STATE: Final = "{{.State.Status}}, exit code {{.State.ExitCode}}, restarted {{.RestartCount}} times"
_GIVEN_BY_THE_KERNEL: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")


class Project:
    """The services of docker/compose.yaml.

    Parameters
    ----------
    secrets
        A folder for its secrets.
    cluster
        Whether docker/cluster.yaml is laid over it.
    """

    def __init__(self, folder: Path, secrets: Path, progress: ProgressLine, *, cluster: bool = False) -> None:
        self._folder, self._progress, self._secrets, self._cluster = folder, progress, secrets, cluster
        self.ports = dict(zip(_PORTS, _free_ports(len(_PORTS)), strict=True))
        self.brokers = (*BROKERS,) if cluster else (*BROKERS,)[:1]
        self.others = (*self.brokers, "tango-db", "tango-databaseds")
        for name in _SECRETS:
            (secrets / name).write_text(os.urandom(16).hex())
        for name in _EMPTY:
            (secrets / name).touch()
        if cluster:
            Security(secrets, names=self.brokers).make(self.outside["KAFKA_BOOTSTRAP"], PREFIX)
            for path in secrets.rglob("*"):  # the containers' users must read them
                path.chmod(0o755 if path.is_dir() else 0o644)
        self._environment = environment() | {"SKA_IMAGES": LOCAL} | dict(os.environ)
        self._environment |= {name: str(port) for name, port in self.ports.items()}
        self._environment |= {"SDP_SECRETS": str(secrets), "SDP_TOPIC_PREFIX": PREFIX}

    @property
    def outside(self) -> dict[str, str]:
        """Return the environment of a program on this machine that uses the project."""
        bus = ",".join(f"127.0.0.1:{self.ports[BROKERS[one]]}" for one in self.brokers)
        database = f"127.0.0.1:{self.ports['TANGO_PORT']}"
        return dict(os.environ) | {"KAFKA_BOOTSTRAP": bus, "TANGO_HOST": database, "SDP_TOPIC_PREFIX": PREFIX}

    def logged_in(self, user: str) -> dict[str, str]:
        """Return the environment of a program on this machine that logs in, if the brokers want it."""
        return self.outside | (
            {FILE_VARIABLE: str(self._secrets / "clients" / f"{user}.toml")} if self._cluster else {}
        )

    def prepare(self, *, tasks: bool = True) -> None:
        """Start Kafka and the Tango database; make the topics and register the devices, unless others do."""
        self.start(*self.brokers, "tango-db")
        self.await_healthy([*self.brokers, "tango-db"])
        self.start("tango-databaseds")
        self.await_healthy(self.others)
        if self._cluster:
            self.complete("rights")
        if tasks:
            self.complete("topics", "register")

    def start(self, *services: str) -> None:
        self._compose("up", "--detach", "--no-build", "--no-deps", *services)

    def complete(self, *services: str) -> None:
        self.start(*services)
        for service in services:
            code = podman("wait", self.container(service))
            if code != "0":
                said = f"service {service}: expected exit code 0, got {code}"
                raise InfraError(f"{said}; its log ends:\n{log_of(self.container(service))}")

    def await_healthy(self, services: Sequence[str]) -> None:
        for one in services:
            found = [""]

            def is_healthy(one: str = one, found: list[str] = found) -> bool:
                found[0] = self.ailment(one)
                return not found[0]

            if self._progress.wait_until(is_healthy, _HEALTHY_WITHIN_S, f"health of {one}") is None:
                said = f"{one}: not healthy within {_HEALTHY_WITHIN_S:g} s: {found[0]}"
                raise InfraError(f"{said}; its log ends:\n{log_of(self.container(one))}")

    def ailment(self, service: str) -> str:
        """Run the health check of a service; return its complaint, which is empty if the service is healthy."""
        argv = ["podman", "healthcheck", "run", self.container(service)]
        done = subprocess.run(argv, env=environment(), capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return ""
        look = ["podman", "inspect", "--format", _STATE, self.container(service)]
        state = subprocess.run(look, env=environment(), capture_output=True, text=True, check=False)
        return " ".join(f"{state.stdout} {done.stdout} {done.stderr}".split())

    def kill(self, service: str) -> None:
        kill_process(self.container(service), self._progress)

    def stop(self, service: str) -> None:
        """Stop a service in order; it is not restarted."""
        podman("stop", self.container(service))

    def missing(self) -> list[str]:
        """Return device servers that do not answer, and the processes that SdpMaster misses."""
        host = self.outside["TANGO_HOST"]
        try:
            for instance in SERVERS:
                tango.DeviceProxy(f"tango://{host}/dserver/{SERVER}/{instance}").ping()
            said = tango.DeviceProxy(f"tango://{host}/mid-sdp/control/0").read_attribute("healthInfo").value or ()
        except tango.DevFailed as failed:
            return [failed.args[0].desc]
        return [one for one in said if "worker" in one or "device server" in one]

    def memory(self) -> dict[str, str]:
        """Return what each running container uses of its memory, in words."""
        lines = podman("stats", "--no-stream", "--format", "{{.Name}}\t{{.MemUsage}}").splitlines()
        mine = (line.split("\t") for line in lines if line.startswith(NAME) and "\t0B" not in line)
        return {name.removeprefix(f"{NAME}_").removesuffix("_1"): used.split(" / ")[0] for name, used in mine}

    def remove(self) -> None:
        """Remove pods, Secrets, containers, volumes and the network, also those that an earlier run has left."""
        # Killed, as nothing is looked at any more: in order, one after the other, they take 80 s.
        if names := podman(
            "pod", "ps", "--quiet", "--filter", f"name=^(pod_)?{NAME}"
        ).split():  # podman-compose makes one
            podman("pod", "rm", "--force", "--time=0", *names)
        if names := podman("secret", "ls", "--quiet", "--filter", f"name=^{NAME}-").split():
            podman("secret", "rm", *names)
        if names := podman("ps", "--all", "--quiet", "--filter", f"name=^{NAME}_").split():
            podman("rm", "--force", "--time=0", *names)
        if names := podman("volume", "ls", "--quiet", "--filter", f"name=^{NAME}[-_]").split():
            podman("volume", "rm", "--force", *names)
        if podman("network", "ls", "--quiet", "--filter", f"name=^{NAME}_").split():
            podman("network", "rm", "--force", "--time=0", f"{NAME}_default")

    def container(self, service: str) -> str:
        return f"{NAME}_{service}_1"

    def _compose(self, *arguments: str) -> None:
        compose = Path(sys.executable).with_name("podman-compose")
        if not compose.exists():
            raise InfraError(f"{compose} is missing; `make containers` installs it, or: pip install podman-compose")
        files = ("compose.yaml", "cluster.yaml")[: 2 if self._cluster else 1]
        argv = [str(compose), *(f"--file={self._folder / name}" for name in files), "--project-name", NAME]
        argv += ["--profile", "demo", "--profile", "observe", *arguments]
        tools.run(argv, what="podman-compose", env=self._environment, folder=self._folder)


def _free_ports(count: int) -> list[int]:
    lowest = int(_GIVEN_BY_THE_KERNEL.read_text().split()[0])
    found: list[int] = []
    for port in random.sample(range(lowest // 2, lowest), lowest - lowest // 2):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found.append(port)
        if len(found) == count:
            return found
    raise InfraError(f"expected {count} free ports of {lowest // 2} to {lowest - 1}, found {len(found)}")


def send_table(project: Project, progress: ProgressLine) -> str:
    """Send a table and return its digest when SdpCalibration shows it."""
    argv = [str(Path(sys.executable).with_name("sdp-facade")), "simulate", "calibration"]
    tools.run(
        [*argv, "--count", "1", "--megabytes", "1"],
        what="sending a table",
        env=project.logged_in(name_of("calibration-pipeline")),
    )
    return await_table(project, progress, "")


def await_table(project: Project, progress: ProgressLine, digest: str) -> str:
    """Wait until SdpCalibration shows a table, of this digest if there is one; return its digest."""
    shown: list[str] = []

    def is_shown() -> bool:
        device = f"tango://{project.outside['TANGO_HOST']}/mid-sdp/calibration/01"
        try:
            shown[:] = [tango.DeviceProxy(device).read_attribute("digest").value or ""]
        except tango.DevFailed:
            return False
        return bool(shown[0]) and shown[0] == (digest or shown[0])

    progress.demand(is_shown, _SHOWN_WITHIN_S, "the table in SdpCalibration")
    return shown[0]


_ALERTS: Final = "mid-sdp/alerts/0"
_BUS: Final = "mid-sdp/bus/0"
_CONDITION, _SOURCE = "receiveOverrun", "receive/0001"
_WITHIN_S: Final = 300.0


class Operator:
    """Looks at alarms and accounts of a project through Tango alone.

    Parameters
    ----------
    outside
        The environment that points at the project, of a source of alerts.
    """

    def __init__(self, outside: Mapping[str, str], progress: ProgressLine) -> None:
        self._tango_host, self._progress = outside["TANGO_HOST"], progress
        self._settings = load_settings(outside)

    def acknowledge_an_alert(self) -> None:
        """Raise an alert on the bus, and acknowledge it when SdpAlerts has its alarm."""
        clock = SystemClock()
        writer = KafkaWriter(Connection(self._settings, clock=clock), health=BusHealth(), client="containers")
        AlertSource(_SOURCE, writer, clock).raise_alert(_CONDITION, "ALARM", "expected no drops, got 312 heaps/s")
        writer.close(_WITHIN_S)
        self.await_state("UNACK")
        about = {"condition": _CONDITION, "source": _SOURCE, "occurrence": self._alarm()["occurrence"]}
        argument = json.dumps({**about, "operator": "make containers", "comment": "seen"})
        self._proxy(_ALERTS).command_inout("Acknowledge", argument)
        self.await_state("ACKED")
        self._progress.step("an alert was raised and acknowledged from outside")

    def await_state(self, state: str) -> None:
        what = f"the alarm {_CONDITION} of {_SOURCE} in the state {state}"
        self._progress.demand(lambda: self._state() == state, _WITHIN_S, what)

    def account(self) -> dict[str, int]:
        """Return what SdpBus says of the balance of each stream, and its dead letters."""
        found: dict[str, int] = {}

        def is_balanced() -> bool:
            try:
                proxy = self._proxy(_BUS)
                names = [one for one in proxy.get_attribute_list() if one.endswith(("Balance", "DeadLettered"))]
                found.update(
                    {one.name: int(one.value) for one in proxy.read_attributes(names) if one.value is not None}
                )
            except tango.DevFailed:
                return False
            return bool(found) and not any(found.values())

        self._progress.demand(is_balanced, _WITHIN_S, "accounts without a difference and without dead letters")
        return found

    def _state(self) -> str:
        try:
            return str(self._alarm().get("state", "NORM"))
        except tango.DevFailed:
            return "no answer"

    def _alarm(self) -> dict[str, Any]:
        alarms = json.loads(self._proxy(_ALERTS).command_inout("GetAlarms"))
        return next((one for one in alarms if (one["condition"], one["source"]) == (_CONDITION, _SOURCE)), {})

    def _proxy(self, device: str) -> Any:
        return tango.DeviceProxy(f"tango://{self._tango_host}/{device}")


def drive(project: Project, progress: ProgressLine, folder: Path, disturb: Callable[[], None]) -> None:
    """Observe and send a table and an alert from outside; look and observe again after the disturbance."""
    journal = JournalWriter(folder / "journal.json")
    # One TM for both observations: another one would give the same transaction_ids again, which are not sent.
    tm = Commanded(project.outside["TANGO_HOST"], "mid-sdp/subarray/01", journal, SystemClock())
    tm.go_through(OBSERVATION, 2.0, {})
    progress.step("one observation is through, by commands and events from outside")
    table, operator = send_table(project, progress), Operator(project.logged_in(name_of("alert-source")), progress)
    operator.acknowledge_an_alert()
    disturb()
    await_table(project, progress, table)
    operator.await_state("ACKED")
    tm.go_through(OBSERVATION, 2.0, {})
    balances = operator.account()
    progress.step(f"after the kills: table and acknowledgement are shown, and {len(balances)} figures of SdpBus are 0")

"""One deployment of the facade as real processes: its topics, its devices, and whatever runs for it."""

import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import tango

from devices.pruning import find_surplus, prune
from devices.registration import register
from facade.admin import access, rights
from facade.admin.quotas import name_of
from facade.admin.topics import create_topics, delete_topics
from facade.infra import local
from facade.infra.processes import Process
from facade.infra.security import ADMINISTRATOR
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.clock import Clock
from facade.kernel.config import FILE_VARIABLE, VARIABLE_OF, Settings, load_settings
from facade.kernel.errors import InfraError
from facade.kernel.icd.load import load
from facade.kernel.icd.model import Icd, instance_role
from facade.kernel.icd.telescope import instance_of, of_telescope
from facade.kernel.icd.topic_model import Topic
from facade.kernel.instances import devices_of, instances
from facade.kernel.names import SERVER
from sdp_facade_lab.progress import ProgressLine
from sdp_facade_lab.roles import Play, RoleProcess, command_line
from sdp_facade_lab.supervisor import Supervisor

_BIN = Path(sys.executable).parent  # beside the interpreter: the virtual environment need not be active
PROGRAM = str(_BIN / "sdp-facade")

_RIGHTS_WITHIN = 300.0
_GIVEN = (
    *("bootstrap", "prefix", "topic_replicas", "telescope", "nodes", "rack_size", "subarrays", "archives", "without"),
    "command_timeout",
)
"""Settings of a deployment that its processes are given."""

Answered = TypeVar("Answered")


class Broker:
    """The Kafka broker of a state folder."""

    def __init__(self, state_dir: Path, clock: Clock | None = None) -> None:
        self._state_dir, self._clock = state_dir, clock

    @property
    def pid(self) -> int:
        lines = local.status(self._state_dir)
        return next((line.pid or 0 for line in lines if line.service is local.ServiceName.KAFKA and line.alive), 0)

    def kill(self) -> None:
        local.stop_services(self._state_dir, local.ServiceName.KAFKA, kill=True, clock=self._clock)

    def start(self) -> None:
        """Start it on the same port and data, and wait until it answers."""
        local.start_services(self._state_dir, local.ServiceName.KAFKA, clock=self._clock)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            self.thaw()

    def thaw(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)


class Deployment:
    """Starts processes of one deployment, each in a session of its own.

    Parameters
    ----------
    folder
        For logs and results.
    variables
        Further environment of the processes.
    """

    def __init__(
        self,
        settings: Settings,
        endpoints: local.Endpoints,
        progress: ProgressLine,
        processes: Supervisor,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.settings, self.endpoints = settings, endpoints
        self.tango_host = endpoints.tango_host
        self.progress, self.clock = progress, progress.clock
        self.processes, self.folder = processes, processes.folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self.icd: Icd = of_telescope(load(), settings.telescope)
        self._topics, self._controllers = {*self.icd.topics}, tuple[str, ...]()
        self.broker = Broker(endpoints.state_dir, self.clock)
        self._variables = dict(variables or {})
        self.logins = set[str]()
        """Roles that log in at secured brokers."""

    @property
    def variables(self) -> dict[str, str]:
        """Return the variables that point a process at this deployment."""
        return {"TANGO_HOST": self.tango_host} | {VARIABLE_OF[one]: str(getattr(self.settings, one)) for one in _GIVEN}

    @property
    def environment(self) -> dict[str, str]:
        """Return the whole environment of its processes: the user's own settings must not reach into it."""
        return self._environment("")

    def _environment(self, login: str | None) -> dict[str, str]:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("SDP_", "KAFKA_", "TANGO_"))}
        path = f"{_BIN}:{os.environ.get('PATH', '')}"
        if (security := self.endpoints.security) is not None and login is not None:
            user = name_of(login, self.icd.telescope) if login else ADMINISTRATOR
            inherited[FILE_VARIABLE] = str(security.settings_of(user))
            self.logins |= {login} - {""}
        return {**inherited, "PATH": path, "PYTHONUNBUFFERED": "1", **self.variables, **self._variables}

    @property
    def connection(self) -> Connection:
        return Connection(self.settings, clock=self.clock)

    def login(self, role: str) -> dict[str, str]:
        """Return the Kafka settings by which a role of the ICD logs in at secured brokers; none at an open one."""
        if (security := self.endpoints.security) is None:
            return {}
        self.logins.add(role)
        return security.kafka_settings(name_of(role, self.icd.telescope))

    def connection_of(self, role: str) -> Connection:
        return Connection(msgspec.structs.replace(self.settings, kafka=self.login(role)), clock=self.clock)

    @property
    def instances(self) -> Sequence[str]:
        """Return the instances of its device server, but for those that it does without."""
        without = {instance_of(self.settings.telescope, role) for role in self.settings.left_out}
        return [name for name in instances(self.icd, self.settings) if name not in without]

    def devices(self, *classes: str) -> list[str]:
        """Return the devices of some classes of the ICD, of all of them by default, but of roles that are not run."""
        named = [self.icd.classes[name] for name in classes or self.icd.classes]
        chosen = [one for one in named if instance_role(one.instance) not in self.settings.left_out]
        return [name for one in chosen for names in devices_of(one, self.settings).values() for name in names]

    def create_topics(self, changed: Mapping[str, Topic] | None = None) -> list[str]:
        """Make the topics, some otherwise than the ICD has them; say how those that exist differ."""
        topics = {**self.icd.topics, **(changed or {})}
        self._topics |= topics.keys()
        return create_topics(self.connection_of("deployer"), topics, replicas=self.settings.topic_replicas)

    def grant_rights(self, *controllers: str) -> None:
        """Give the roles their rights at secured brokers, and wait until the brokers know them.

        `controllers`: consumer groups of the controllers.
        """
        if self.endpoints.security is None:
            return
        self._controllers = controllers
        plan = rights.planned(self.icd, load_settings(self.environment), {"controller": controllers})
        access.create_acls(self.connection, plan)
        self.progress.demand(
            lambda: not rights.missing(plan, access.read_acls(self.connection)),
            _RIGHTS_WITHIN,
            "the brokers know all rights",
        )

    def delete_topics(self) -> int:
        """Delete its topics, and the rights on its names at secured brokers; return the number of topics."""
        if self.endpoints.security is not None:
            plan = rights.planned(self.icd, load_settings(self.environment), {"controller": self._controllers})
            access.delete_acls(self.connection, rights.on_names_of(plan, access.read_acls(self.connection)))
        return delete_topics(self.connection, self._topics)

    def register(self) -> int:
        return register(self.icd, self.settings, self.tango_host)

    def prune(self) -> int:
        """Remove the devices of a larger deployment from the Tango database; return their number."""
        return prune(find_surplus(self.icd, self.settings, self.tango_host), self.tango_host)

    def start(
        self, name: str, argv: Sequence[str], *, ends: bool = False, login: str | None = "", **variables: str
    ) -> Process:
        """Start a process with some further variables of its environment; see `Supervisor.start`.

        `login`: role of the ICD by which it logs in at secured brokers. Empty: as their administrator. None: not at
        all.
        """
        return self.processes.start(Process, name, argv, {**self._environment(login), **variables}, ends=ends)

    def launch(
        self, name: str, *arguments: object, ends: bool = False, login: str | None = "", **variables: str
    ) -> Process:
        return self.start(name, [PROGRAM, *map(str, arguments)], ends=ends, login=login, **variables)

    def run_release(self, folder: Path) -> None:
        """Start processes from the source tree of another release from now on."""
        self._variables["PYTHONPATH"] = str(folder)

    def server(self, instance: str, *, name: str = "") -> Process:
        login = instance.removeprefix(instance_of(self.settings.telescope, "")).partition("-")[0]
        return self.start(name or instance, [str(_BIN / SERVER), instance], login=login)

    def worker(self, slot: int | str) -> Process:
        return self.launch(f"aggregate-{slot}", "aggregate", "--slot", slot, login="aggregate")

    def answers(self, instance: str) -> bool:
        return answers(self.tango_host, f"dserver/{SERVER}/{instance}")

    def proxy(self, device: str) -> Any:
        """Return a proxy of its own each time: one that has failed waits before it tries again."""
        return tango.DeviceProxy(f"tango://{self.tango_host}/{device}")

    def values(self, device: str, *attributes: str) -> dict[str, Any]:
        """Read attributes, without those that cannot be read; of a device that does not answer there is none."""
        try:
            answers = self.proxy(device).read_attributes(list(attributes))
        except tango.DevFailed:
            return {}
        return {one.name: one.value for one in answers if not one.has_failed}

    def value(self, device: str, attribute: str) -> Any:
        """Return what an attribute shows; None: it cannot be read, or its device does not answer."""
        return self.values(device, attribute).get(attribute)

    def alarms(self, device: str) -> list[dict[str, Any]]:
        return list(msgspec.json.decode(self.proxy(device).command_inout("GetAlarms")))

    def play(
        self, role: Play, *, name: str = "", ends: bool = False, login: str | None = "", **task: Any
    ) -> RoleProcess:
        """Start a process that plays a role, and by default has its name; see `sdp_facade_lab.roles` and `start`."""
        name = name or role.__name__.replace("_", "-")
        argv = command_line(role, self.folder / f"{name}.log", task)
        return self.processes.start(RoleProcess, name, argv, self._environment(login), ends=ends)

    def await_ready(self, role: RoleProcess, seconds: float = 60.0) -> None:
        self.progress.demand(lambda: role.is_ready or not role.is_alive, seconds, f"{role.name} is ready")
        if not role.is_ready:
            raise InfraError(f"{role.name} ended before it was ready; its output ends:\n{role.tail()}")

    def result(self, role: RoleProcess, kind: type[Answered], seconds: float = 600.0) -> Answered:
        self.processes.forget(role.name)
        self.progress.demand(lambda: not role.is_alive, seconds, f"the end of {role.name}")
        if not role.result.exists():
            raise InfraError(f"{role.name} delivered nothing; its output ends:\n{role.tail()}")
        return msgspec.json.decode(role.result.read_bytes(), type=kind)


def answers(tango_host: str, device: str) -> bool:
    try:
        # A proxy of its own each time: one that has failed waits before it tries again.
        return bool(tango.DeviceProxy(f"tango://{tango_host}/{device}").ping() > 0)
    except tango.DevFailed:
        return False

"""A Kafka node (KRaft) from the jars that Maven copies: a single one, or one of a cluster.

Ready means that the broker itself confirms it: it is asked for the cluster's metadata, and must name itself as a live
broker of *our* cluster. A port that merely accepts connections, or another Kafka on it, is not enough.
"""

import base64
import os
import re
import shutil
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from string import Template
from typing import Final

from facade.admin.cluster import find_cluster
from facade.infra import tools
from facade.infra.ports import HOST, choose_port
from facade.infra.processes import PortTakenError, Process, check_alive
from facade.infra.security import Security
from facade.kernel.clock import Clock, SystemClock, wait_until
from facade.kernel.errors import InfraError
from facade.kernel.resources import resource

_OLDEST_JAVA: Final = 17
_JAVA_OPTIONS: Final = (
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    # A broker with a full heap must die visibly. No option ends one with full direct memory: that error is thrown by
    # Java code, and each thread continues or hangs. So `direct_memory` is sufficient for all.
    "-XX:+ExitOnOutOfMemoryError",
    "-Djava.awt.headless=true",
    "-XX:-UsePerfData",  # a file in the machine's own temporary folder that a killed broker would leave behind
)
_STARTS_WITHIN_S: Final = 300.0
"""On a busy machine a broker of a cluster that was killed needs a minute and a half; one that has died is noticed."""
_ARCHIVES_WITHIN_S: Final = 60.0
_ANSWERS_WITHIN_S: Final = 0.5
_LIMPS_AFTER_S: Final = 5.0
_OTHER_DIRECT_MEMORY: Final = 64 << 20
"""Direct memory for everything except requests [bytes]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quorum:
    """A cluster of several brokers, each of which is a controller too."""

    cluster_id: str
    ports: Mapping[int, int]
    """Port of each controller by the number of its node."""


def make_quorum(brokers: int, host: str = HOST) -> Quorum:
    """Choose the id and the controllers' ports of a new cluster."""
    return Quorum(cluster_id=_new_cluster_id(), ports={node: choose_port(host) for node in range(1, brokers + 1)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Kafka:
    """Starts a broker whose data live in ``<folder>/data``.

    Attributes
    ----------
    node
        Number of the broker in its cluster.
    quorum
        Cluster of the broker. None: it is a single broker.
    security
        Its secrets. None: it accepts any client.
    host
        Address of this machine on which it listens.
    """

    folder: Path
    heap: str
    report: tools.Notify
    clock: Clock = field(default_factory=SystemClock)
    node: int = 1
    quorum: Quorum | None = None
    security: Security | None = None
    host: str = HOST

    def launch(self, port: int, started: Callable[[Process], None]) -> None:
        """Copy the jars and format the storage (both once), and start the broker."""
        java = find_java()
        classes = archived_classes(java, self.report)
        self.run([java] if classes is None else [java, f"-XX:SharedArchiveFile={classes}"], [], port, started)

    def run(self, java: Sequence[str], options: Sequence[str], port: int, started: Callable[[Process], None]) -> None:
        """Format the storage (once) and start the broker, with options for the broker alone."""
        classpath = f"{libraries(self.report)}/*"
        properties = self._write_properties(port)
        if self.security is not None:
            self.security.secure(properties)
        if not (self._data / "meta.properties").exists():
            self.report("Kafka: formatting its storage")
            argv = [*java, "-cp", classpath, "kafka.tools.StorageTool", "format", "--ignore-formatted"]
            cluster_id = _new_cluster_id() if self.quorum is None else self.quorum.cluster_id
            argv += ["-t", cluster_id, "-c", str(properties)]
            tools.run(argv, what="formatting Kafka's storage")
        argv = [*java, *options, f"-Xms{self.heap}", f"-Xmx{self.heap}", *_JAVA_OPTIONS]
        argv.append(f"-XX:MaxDirectMemorySize={direct_memory(properties.read_text())}")
        # Libraries of codecs are unpacked there; a killed broker leaves them behind, and the machine's folder would
        # fill.
        temporary = self.folder / "tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        argv.append(f"-Djava.io.tmpdir={temporary}")
        argv += [f"-Dlog4j2.configurationFile={resource('docker', 'kafka', 'log4j2.yaml')}"]
        argv += ["-cp", classpath, "kafka.Kafka", str(properties)]
        process = Process.start("kafka", argv, log=self.folder / "kafka.log")
        started(process)
        _prefer(process.pid)

    def await_ready(self, port: int, processes: Sequence[Process]) -> None:
        """Return when the broker is a live member of its cluster."""
        self.report(f"Kafka: starting on {self.host}:{port}")
        cluster_id = self._cluster_id()
        where, login = self.door(port)

        def answers() -> bool:
            for process in processes:
                check_alive(process)
            found = find_cluster(where, _ANSWERS_WITHIN_S, login)
            if found is not None and found.id != cluster_id:
                what = f"expected cluster {cluster_id}, got {found.id}"
                raise PortTakenError(f"another Kafka answers on {self.host}:{port}: {what}")
            return found is not None and where in found.brokers

        if not wait_until(self.clock, answers, _STARTS_WITHIN_S):
            raise InfraError(
                f"Kafka does not answer on {self.host}:{port} within {_STARTS_WITHIN_S:g} s; "
                f"the end of {processes[0].log}:\n" + processes[0].tail()
            )

    def door(self, port: int) -> tuple[str, Mapping[str, str] | None]:
        """Return the address and the Kafka settings with which the managing program reaches the broker."""
        if self.security is None:
            return f"{self.host}:{port}", None
        return self.security.address(self.folder / "server.properties"), self.security.login()

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _write_properties(self, port: int) -> Path:
        parts = [resource("docker", "kafka", "server.properties")]
        if self.quorum is not None:
            parts.append(resource("docker", "kafka", "cluster.properties"))
        template = Template("".join(part.read_text() for part in parts))
        controllers = {self.node: choose_port(self.host)} if self.quorum is None else self.quorum.ports
        path = self.folder / "server.properties"
        self.folder.mkdir(parents=True, exist_ok=True)
        path.write_text(
            template.substitute(
                node=self.node,
                host=self.host,
                port=port,
                brokers_port=choose_port(self.host),
                controller_port=controllers[self.node],
                voters=",".join(f"{node}@{self.host}:{controller}" for node, controller in controllers.items()),
                data_dir=self._data,
            )
        )
        return path

    def _cluster_id(self) -> str:
        text = (self._data / "meta.properties").read_text()
        found = re.search(r"^cluster\.id=(\S+)$", text, re.MULTILINE)
        if found is None:
            raise InfraError(f"{self._data / 'meta.properties'} has no cluster.id: expected a formatted storage")
        return found[1]


def direct_memory(properties: str) -> int:
    """Return the direct memory that a broker with these settings may need [bytes].

    Java reads and writes sockets and files through a buffer outside of the heap. Each thread keeps the largest one that
    it has needed. A limit of the kept buffers (jdk.nio.maxCachedBufferSize) would save the memory, but with a new
    buffer for each part that arrives a message of 100 MB takes 48 s instead of 3 s.
    """
    found = dict(re.findall(r"^([a-z.]+)=(\d+)$", properties, re.MULTILINE))
    threads = int(found["num.network.threads"]) + int(found["num.io.threads"])
    return threads * int(found["socket.request.max.bytes"]) + _OTHER_DIRECT_MEMORY


def find_limp(address: str, login: Mapping[str, str] | None = None) -> str:
    """Return the fault of a running broker that does not answer; empty: it answers. `login`: see `find_cluster`.

    The broker assigns its connections to its network threads in turn. One request is sent to each thread, as a failed
    thread hangs alone.
    """
    properties = resource("docker", "kafka", "server.properties").read_text()
    threads = int(re.findall(r"^num.network.threads=(\d+)$", properties, re.MULTILINE)[0])
    with ThreadPoolExecutor(threads) as pool:
        asked = [pool.submit(find_cluster, address, _LIMPS_AFTER_S, login) for _ in range(threads)]
        silent = sum(one.result() is None for one in asked)
    if not silent:
        return ""
    return f"limps: does not answer {silent} of {threads} connections within {_LIMPS_AFTER_S:g} s"


def find_java() -> str:
    """Return the path of a Java that can run Kafka: from JAVA_HOME, else the first on the PATH.

    Raises
    ------
    InfraError
        There is no Java, or it is too old.
    """
    hint = f"install Java {_OLDEST_JAVA} or newer, on Debian `apt install default-jre-headless`"
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin") if home else None
    java = java or tools.find_program("java", hint)
    output = tools.run([java, "-version"], what="asking Java for its version")
    found = re.search(r'version "(?:1\.)?(\d+)', output)
    if found is None or int(found[1]) < _OLDEST_JAVA:
        raise InfraError(
            f"{java} is too old for Kafka: expected version {_OLDEST_JAVA} or newer, "
            f"got {output.splitlines()[0]!r}; {hint}"
        )
    return java


def libraries(report: tools.Notify) -> Path:
    """Return the folder with Kafka's jars, copied by Maven the first time.

    Raises
    ------
    InfraError
        Maven is missing or cannot download them.
    """
    pom = resource("docker", "kafka", "pom.xml")

    def install(folder: Path) -> None:
        hint = "it copies Kafka's jars once; install Maven, on Debian `apt install maven`"
        mvn = tools.find_program("mvn", hint)
        report("Kafka: Maven copies its jars (once, 60 MB; 5 to 60 s)")
        argv = [mvn, "-q", "-B", "-Dstyle.color=never", "-f", str(pom)]
        argv += ["dependency:copy-dependencies", f"-DoutputDirectory={folder / 'libs'}"]
        tools.run(argv, what=f"copying Kafka's jars as {pom} lists them")

    digest = sha256(pom.read_bytes()).hexdigest()[:12]
    return tools.installed_once(f"kafka-{digest}", install, report) / "libs"


def configure(arguments: Sequence[str], properties: Path | None, report: tools.Notify) -> str:
    """Run Kafka's own tool for settings of its entities, and return its output.

    Parameters
    ----------
    properties
        Properties of the tool's client; None: none are needed.

    Raises
    ------
    InfraError
        Java or the jars are missing, or the tool refuses.
    """
    argv = [find_java(), "-cp", f"{libraries(report)}/*", "org.apache.kafka.tools.ConfigCommand", *arguments]
    argv += [] if properties is None else ["--command-config", str(properties)]
    return tools.run(argv, what="setting or reading quotas with Kafka's own tool")


def archived_classes(java: str, report: tools.Notify) -> Path | None:
    """Return an archive of a broker's classes, made once for each Java; None: it could not be made.

    With it (class-data sharing, JEP 350) a broker starts in half the time. Java ignores an archive that is not its own.
    """

    def install(folder: Path) -> None:
        report("Kafka: archiving its classes, so that it starts in half the time (once, 50 MB; 5 to 30 s)")
        broker, port = Kafka(folder=folder / "broker", heap="256m", report=lambda _: None), choose_port()
        running: list[Process] = []
        # `timeout` ends it if this process is killed.
        limited = ["timeout", f"{_STARTS_WITHIN_S + _ARCHIVES_WITHIN_S:g}", java]
        broker.run(limited, [f"-XX:ArchiveClassesAtExit={folder / 'classes.jsa'}"], port, running.append)
        try:
            broker.await_ready(port, running)
        finally:
            for process in running:
                process.stop(_ARCHIVES_WITHIN_S)
        if not (folder / "classes.jsa").exists():
            raise InfraError(f"Java made no archive:\n{tools.tail_of(broker.folder / 'kafka.log')}")
        shutil.rmtree(broker.folder)

    said = tools.run([java, "-version"], what="asking Java for its version").splitlines()
    # Java says first which options it has picked up from the environment. No archive depends on them.
    version = "\n".join(line for line in said if not line.startswith("Picked up "))
    made_of = libraries(report).parent.name + java + version
    try:
        name = f"kafka-classes-{sha256(made_of.encode()).hexdigest()[:12]}"
        return tools.installed_once(name, install, report) / "classes.jsa"
    except InfraError as error:
        report(f"Kafka: it starts without an archive of its classes: {error}")
        return None


def _new_cluster_id() -> str:
    """Return an id in Kafka's form: 16 bytes in URL-safe base 64 that do not look like an option."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


def _prefer(pid: int) -> None:
    """Give a broker nine times the share of busy processors that one of its clients has.

    Linux shares them among sessions (autogroup in sched(7)), and each process of ours is one. A broker with twenty
    clients would get a twentieth, so it would answer none of them in time, and each would ask again.
    """
    with suppress(OSError):  # only root may, and a kernel may make no groups
        Path(f"/proc/{pid}/autogroup").write_text("-10")

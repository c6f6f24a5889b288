"""Locks, things that are installed once, ports, and the question whether Kafka answers."""

import errno
import re
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from facade.admin.cluster import find_cluster
from facade.infra import kafka, local, ports, tools
from facade.infra.local import InfraState, ServiceName, ServiceState, save
from facade.infra.ports import HOST, choose_port, is_free
from facade.infra.processes import Process, ProcessRecord
from facade.kernel.cli.app import app
from facade.kernel.errors import InfraError
from tests.support.waiting import HANG


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "sdp-facade"


@contextmanager
def server(answer: bytes) -> Iterator[int]:
    with socket.create_server((HOST, 0)) as listener:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        connection.recv(1000)
                        connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(HANG)


def test_kafka_names_its_brokers_and_its_cluster() -> None:
    mock = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "mock"})
    (broker,) = mock.list_topics(timeout=HANG).brokers.values()
    cluster = find_cluster(f"{broker.host}:{broker.port}", HANG)
    assert cluster is not None
    assert cluster.id.startswith("mock")
    assert cluster.brokers == {f"{broker.host}:{broker.port}"}


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0\0\4\0\0\5\xd9"])
def test_what_is_not_kafka_does_not_pass_for_it(answer: bytes) -> None:
    with server(answer) as port:
        assert find_cluster(f"{HOST}:{port}", 0.3) is None


def test_a_broker_has_direct_memory_for_the_largest_request_in_each_thread() -> None:
    settings = "#num.io.threads=9\nnum.network.threads=3\nnum.io.threads=2\nsocket.request.max.bytes=1000\n"
    assert kafka.direct_memory(settings) == 5 * 1000 + 64 * 1024 * 1024


class TestLimping:
    """A broker whose process is alive, and what it answers."""

    @pytest.fixture(autouse=True)
    def soon(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(kafka, "_LIMPS_AFTER_S", 0.3)

    @staticmethod
    def _status(port: int, folder: Path, *, ready: bool = True) -> tuple[int, str]:
        me = psutil.Process()
        record = ProcessRecord(name="kafka", pid=me.pid, created=me.create_time(), argv=(), log=str(folder / "log"))
        service = ServiceState(port=port, processes=(record,), ready=ready)
        save(folder, InfraState().with_service(ServiceName.KAFKA, service))
        result = CliRunner().invoke(app, ["infra", "status", "--state-dir", str(folder)], env={"COLUMNS": "200"})
        return result.exit_code, " ".join(result.output.split())

    def test_one_that_answers_does_not_limp(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(kafka, "_LIMPS_AFTER_S", HANG)
        mock = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "mock"})
        (broker,) = mock.list_topics(timeout=HANG).brokers.values()
        code, text = self._status(broker.port, tmp_path)
        assert (code, "yes" in text) == (0, True)

    def test_one_that_takes_connections_and_answers_none_is_named(self, tmp_path: Path) -> None:
        with socket.create_server((HOST, 0)) as listener:
            code, text = self._status(listener.getsockname()[1], tmp_path)
        assert code == 1
        assert "limps: does not answer 3 of 3 connections within 0.3 s" in text

    def test_one_that_starts_is_not_asked(self, tmp_path: Path) -> None:
        with socket.create_server((HOST, 0)) as listener:
            code, text = self._status(listener.getsockname()[1], tmp_path, ready=False)
        assert (code, "yes" in text) == (0, True)


def test_a_port_in_use_is_not_free_and_a_chosen_one_is() -> None:
    with socket.create_server((HOST, 0)) as listener:
        assert not is_free(listener.getsockname()[1])
    port = choose_port()
    assert is_free(port)
    assert port < 32_768, "in the range of outgoing connections"


def test_a_port_on_which_the_user_may_not_listen_is_not_called_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(address: tuple[str, int]) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    class Probe(socket.socket):
        bind = staticmethod(refuse)

    monkeypatch.setattr(ports.socket, "socket", Probe)
    with pytest.raises(InfraError, match="expected one on which this user may listen, got: Permission denied; choose"):
        is_free(80)


def test_two_processes_choose_different_ports_although_nobody_listens_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    argv = [sys.executable, "-c", "from facade.infra.ports import choose_port; print(choose_port()); input()"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        taken = int(other.stdout.readline())
        chances = iter([taken, *range(15_000, 32_000)])
        monkeypatch.setattr(ports.secrets, "randbelow", lambda _: next(chances) - 15_000)
        assert is_free(taken)
        assert choose_port() != taken
        other.communicate("\n")


def test_something_is_installed_once_and_whole_or_not_at_all(cache: Path) -> None:
    calls = []

    def fails(folder: Path) -> None:
        (folder / "half").touch()
        raise InfraError("no network")

    def works(folder: Path) -> None:
        calls.append(folder)
        (folder / "whole").touch()

    with pytest.raises(InfraError, match="no network"):
        tools.installed_once("thing", fails, print)
    assert [path.name for path in cache.iterdir()] == ["thing.lock"]

    threads = [threading.Thread(target=tools.installed_once, args=("thing", works, print)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG)
    assert len(calls) == 1
    assert [path.name for path in (cache / "thing").iterdir()] == ["whole"]
    assert sorted(path.name for path in cache.iterdir()) == ["thing", "thing.lock"]


def test_a_lock_is_held_by_one_also_when_its_file_is_removed_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "lock"
    waits, has_it = threading.Event(), threading.Event()

    def second() -> None:
        with tools.locked(path, on_wait=waits.set):
            has_it.set()
            assert path.exists()

    with tools.locked(path):
        thread = threading.Thread(target=second)
        thread.start()
        assert waits.wait(HANG)
        assert not has_it.is_set()
        path.unlink()
        path.parent.rmdir()
    thread.join(HANG)
    assert has_it.is_set()


def test_a_failing_program_is_quoted_without_stack_frames() -> None:
    with pytest.raises(InfraError, match=r"brewing failed: expected exit code 0, got 4 from .*\n    no beans$"):
        tools.run(["sh", "-c", r"printf 'no beans\n\tat Grinder.java:7\n'; exit 4"], what="brewing")
    with pytest.raises(InfraError, match=r"brewing failed: .*no-such"):
        tools.run(["/no-such"], what="brewing")
    assert tools.run(["echo", "said"], what="echo") == "said\n"


def test_a_service_that_nobody_could_write_down_is_stopped_with_the_others(tmp_path: Path) -> None:
    save(tmp_path, InfraState().with_service(ServiceName.KAFKA, ServiceState(port=9)))
    left = Process.start("kafka", ["sleep", "60"], log=tmp_path / "kafka" / "kafka.log")
    local.down(tmp_path)
    assert not left.is_alive


@pytest.mark.parametrize(
    ("output", "is_good"),
    [
        ('openjdk version "17.0.15" 2025-04-15', True),
        ('openjdk version "25" 2025-09-16', True),
        ('java version "1.8.0_401"', False),
        ("something else", False),
    ],
)
def test_java_is_new_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, is_good: bool) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{output}' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    if is_good:
        assert kafka.find_java() == str(java)
    else:
        with pytest.raises(InfraError, match="expected version 17 or newer, got "):
            kafka.find_java()


def test_the_number_of_brokers_of_a_folder_stays(tmp_path: Path) -> None:
    with pytest.raises(InfraError, match="the number of brokers 2 is wrong: expected 1 or 3"):
        local.up(local.LocalOptions(state_dir=tmp_path, brokers=2))
    save(tmp_path, InfraState().with_service(ServiceName.KAFKA, ServiceState(port=9)))
    with pytest.raises(InfraError, match=r"is 1 here, asked for was 3; .* `sdp-facade infra down --wipe"):
        local.up(local.LocalOptions(state_dir=tmp_path, brokers=3))


def test_what_to_do_names_the_folder_as_a_shell_takes_it(tmp_path: Path) -> None:
    """Otherwise `infra down --wipe` would remove the data of the default folder."""
    folder = tmp_path / "a night"
    save(folder, InfraState().with_service(ServiceName.KAFKA, ServiceState(port=9)))
    said = [CliRunner().invoke(app, ["infra", "status", "--state-dir", str(tmp_path)]).output]
    for call in (
        lambda: local.up(local.LocalOptions(state_dir=folder, secure=True)),
        lambda: local.endpoints(folder),
        lambda: local.renew_certificates(folder),
        lambda: local.start_services(folder, "kafka-2"),
    ):
        with pytest.raises(InfraError) as refused:
            call()
        said.append(str(refused.value))
    commands = [shlex.split(re.findall("`sdp-facade infra (.*?)`", text.replace("\n", ""))[-1]) for text in said]
    assert commands == [
        ["up", "--state-dir", str(tmp_path)],
        ["down", "--wipe", "--state-dir", str(folder)],
        ["up", "--state-dir", str(folder)],
        ["up", "--secure", "--state-dir", str(folder)],
        ["up", "--state-dir", str(folder)],
    ]


def test_a_java_that_archives_no_classes_starts_the_broker_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\ncase $1 in -version) echo 17 ;; *) echo unknown option $1 >&2; exit 3 ;; esac\n")
    java.chmod(0o755)
    monkeypatch.setattr(kafka, "libraries", lambda report: tmp_path / "kafka" / "libs")
    said: list[str] = []
    assert kafka.archived_classes(str(java), said.append) is None
    assert "starts without an archive" in said[-1]
    assert "unknown option" in said[-1]
    assert not list(cache.glob("kafka-classes-*/"))


def test_an_archive_of_classes_serves_whatever_options_the_environment_gives_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "java"
    java.write_text('#!/bin/sh\necho "Picked up JAVA_TOOL_OPTIONS: $JAVA_TOOL_OPTIONS" >&2\necho 17 >&2\n')
    java.chmod(0o755)
    monkeypatch.setattr(kafka, "libraries", lambda report: tmp_path / "kafka" / "libs")
    names: set[str] = set()
    monkeypatch.setattr(kafka.tools, "installed_once", lambda name, *_: names.add(name) or tmp_path)
    for options in ("-Done", "-Dtwo"):
        monkeypatch.setenv("JAVA_TOOL_OPTIONS", options)
        assert kafka.archived_classes(str(java), print) == tmp_path / "classes.jsa"
    assert len(names) == 1


def test_a_broker_unpacks_libraries_in_its_own_folder_which_each_start_empties(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka, "libraries", lambda report: tmp_path / "libs")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "meta.properties").touch()
    started: list[Process] = []
    for _ in range(2):
        broker = kafka.Kafka(folder=tmp_path, heap="64m", report=lambda _: None)
        broker.run(["true"], [], choose_port(), started.append)
        assert started[-1].wait(HANG)
        assert f"-Djava.io.tmpdir={tmp_path / 'tmp'}" in started[-1].record.argv
        assert [*(tmp_path / "tmp").iterdir()] == []
        settings = (tmp_path / "server.properties").read_text()
        assert f"-XX:MaxDirectMemorySize={kafka.direct_memory(settings)}" in started[-1].record.argv
        (tmp_path / "tmp" / "liblz4-java-1.so").touch()

"""The local runtime with real services: shared by callers, kept over a crash, no stranger ever hit."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from facade.infra import local
from facade.infra.kafka import find_java
from facade.infra.local import LocalOptions, ServiceName, load
from facade.kernel.errors import InfraError
from tests.support import topics
from tests.support.waiting import HANG, until

REGISTER = """
import sys, tango
database = tango.Database(*sys.argv[1].split(":"))
info = tango.DbDevInfo()
info.server, info._class, info.name = "Sample/1", "Sample", "test/infra/1"
database.add_device(info)
print(database.get_device_class_list("Sample/1").value_string)
"""
LOOK_UP = "import sys, tango; print(tango.Database(*sys.argv[1].split(':')).get_class_for_device('test/infra/1'))"


@pytest.fixture
def state_dir(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "run"
    try:
        yield folder
    finally:
        local.down(folder, wipe=True)
        assert not folder.exists()


def pids(state_dir: Path) -> dict[str, int | None]:
    return {f"{line.service}/{line.process}": line.pid for line in local.status(state_dir) if line.alive}


def crash(pid: int | None) -> None:
    process = psutil.Process(pid)
    process.kill()
    process.wait(HANG)


def runs(pid: int | None) -> bool:
    # A process whose `up` is gone belongs to init, which may take its time to collect a zombie.
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def infra_command(state_dir: Path, *arguments: str, **env: str) -> subprocess.Popen[str]:
    argv = [str(Path(sys.executable).with_name("sdp-facade")), "infra", *arguments, "--state-dir", str(state_dir)]
    pipe = subprocess.PIPE
    return subprocess.Popen(argv, stdout=pipe, stderr=pipe, text=True, env={**os.environ, **env})


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=HANG)
    return process.returncode, out, err


def run_tango(code: str, tango_host: str) -> str:
    argv = [sys.executable, "-W", "ignore", "-c", code, tango_host]
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=HANG).stdout


def produce(bootstrap: str, value: bytes) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics([NewTopic("local.sample", 1, 1)]).values():
        made.result(HANG)
    topics.send(bootstrap, "local.sample", [(None, value)])


def consume(bootstrap: str) -> bytes:
    (message,) = topics.read_all(bootstrap, "local.sample")
    return bytes(message.value())


@pytest.mark.kafka
@pytest.mark.tango
def test_a_second_up_finds_what_the_first_one_started(state_dir: Path) -> None:
    two_ups_at_once_start_one_broker(state_dir)
    first = local.endpoints(state_dir)
    running = pids(state_dir)
    assert set(running) == {"kafka/kafka", "tango-db/tango-db"}
    assert local.up(LocalOptions(state_dir=state_dir)) == first == local.endpoints(state_dir)
    assert pids(state_dir) == running
    maps = Path(f"/proc/{running['kafka/kafka']}/maps").read_text()
    assert "/classes.jsa" in maps, "the broker starts with its archived classes"
    preferred = subprocess.run(["/bin/sh", "-c", "echo -1 >/proc/self/autogroup"], start_new_session=True, check=False)
    if preferred.returncode == 0:  # only some users may, and not every kernel has groups
        assert "nice -10" in Path(f"/proc/{running['kafka/kafka']}/autogroup").read_text()

    code, out, _ = ended(infra_command(state_dir, "env"))
    variables = f"KAFKA_BOOTSTRAP={first.bootstrap} TANGO_HOST={first.tango_host} SDP_TOPIC_PREFIX=test."
    variables += " SDP_TOPIC_REPLICAS=1"
    assert (code, out) == (0, f"export {variables}\n")

    with pytest.raises(InfraError, match=r"kafka runs on port \d+, asked for was 1$|asked for was 1;"):
        local.up(LocalOptions(state_dir=state_dir, kafka_port=1))

    a_killed_broker_comes_back_on_its_port_with_its_data(state_dir, first)
    local.stop_services(state_dir, "tango-db", kill=True)
    code, out, err = ended(infra_command(state_dir, "env"))
    assert (code, out) == (1, "")
    assert "tango-db does not run" in err
    assert "Traceback" not in err
    assert ended(infra_command(state_dir, "status"))[0] == 1
    assert local.start_services(state_dir, "tango-db") == first
    assert ended(infra_command(state_dir, "status"))[0] == 0
    down_leaves_a_stranger_alone(state_dir)
    a_port_that_somebody_took_is_named_or_replaced(state_dir, first)


@pytest.mark.tango
def test_a_tango_database_may_be_started_alone(state_dir: Path) -> None:
    """For a replay, beside brokers of another place: their settings are left as they are."""
    with pytest.raises(InfraError, match="kafka was never started"):
        local.start_services(state_dir, "kafka")
    started = local.start_services(state_dir, "tango-db")
    code, out, _ = ended(infra_command(state_dir, "env"))
    assert (code, out) == (0, f"export TANGO_HOST={started.tango_host}\n")
    assert ended(infra_command(state_dir, "status"))[0] == 0
    local.down(state_dir, wipe=True)
    assert not state_dir.exists()


def two_ups_at_once_start_one_broker(state_dir: Path) -> None:
    both = [infra_command(state_dir, "up", "--prefix", "test.") for _ in range(2)]
    results = [ended(process) for process in both]
    assert [code for code, _, _ in results] == [0, 0], results
    assert results[0][1] == results[1][1]
    brokers = [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if str(state_dir / "kafka" / "server.properties") in (process.info["cmdline"] or ())
    ]
    assert brokers == [pids(state_dir)["kafka/kafka"]]


def a_killed_broker_comes_back_on_its_port_with_its_data(state_dir: Path, first: local.Endpoints) -> None:
    record = os.urandom(1_000_000)
    produce(first.bootstrap, record)
    run_tango(REGISTER, first.tango_host)
    before = pids(state_dir)

    crash(before["kafka/kafka"])
    assert local.up(LocalOptions(state_dir=state_dir)) == first
    after = pids(state_dir)
    assert after["kafka/kafka"] != before["kafka/kafka"]
    assert after["tango-db/tango-db"] == before["tango-db/tango-db"]
    assert consume(first.bootstrap) == record
    assert run_tango(LOOK_UP, first.tango_host) == "Sample\n"


def down_leaves_a_stranger_alone(state_dir: Path) -> None:
    """As if the kernel had given the id of ours to another process, later."""
    ours = pids(state_dir).values()
    with subprocess.Popen(["sleep", "3600"], start_new_session=True) as stranger:
        try:
            path = state_dir / "infra.json"
            original = path.read_text()
            claimed = json.loads(original)
            [database] = claimed["services"]["tango-db"]["processes"]
            database |= {"pid": stranger.pid, "created": database["created"] - 60.0}
            path.write_text(json.dumps(claimed))
            local.down(state_dir)
            assert stranger.poll() is None
            path.write_text(original)
            local.down(state_dir)
            assert not any(map(runs, ours))
            assert stranger.poll() is None
        finally:
            stranger.kill()
    assert [line.alive for line in local.status(state_dir)] == [False, False]


def a_port_that_somebody_took_is_named_or_replaced(state_dir: Path, first: local.Endpoints) -> None:
    host, port = first.tango_host.split(":")
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((host, int(port)))
        taken.listen()
        with pytest.raises(InfraError, match=rf"tango-db cannot have port {port}"):
            local.start_services(state_dir, ServiceName.TANGO_DB)
        again = local.up(LocalOptions(state_dir=state_dir))
        assert again.tango_host != first.tango_host
        assert again.bootstrap == first.bootstrap


@pytest.mark.kafka
@pytest.mark.tango
def test_an_up_that_is_killed_leaves_nothing_that_down_would_not_find(state_dir: Path, tmp_path: Path) -> None:
    """It waits for a broker that never answers."""
    command = infra_command(
        state_dir, "up", PATH=f"{java_without_a_broker(tmp_path)}:{os.environ['PATH']}", JAVA_HOME=""
    )
    running = until(lambda: found if len(found := pids(state_dir)) == 2 else None, "both processes are started")
    assert running is not None
    command.kill()
    ended(command)
    with pytest.raises(InfraError, match="does not run"):
        local.endpoints(state_dir)
    local.down(state_dir)
    assert not any(map(runs, running.values()))


def java_without_a_broker(folder: Path) -> Path:
    """Return a folder with a Java that sleeps where it is told to run a broker, and makes no archive of its classes."""
    java = folder / "bin" / "java"
    java.parent.mkdir()
    java.write_text(
        "#!/bin/sh\n"
        'case "$*" in *ArchiveClassesAtExit*) exit 1;; *" kafka.Kafka "*) exec sleep 3600;; esac\n'
        f'exec {find_java()} "$@"\n'
    )
    java.chmod(0o755)
    return java.parent


def test_what_is_missing_or_wrong_is_one_clear_message(state_dir: Path, tmp_path: Path) -> None:
    env = {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache"), "JAVA_HOME": ""}
    code, out, err = ended(infra_command(state_dir, "up", **env))
    assert (code, out) == (1, "")
    assert "the program `java` is not on the PATH" in err
    assert "Traceback" not in err
    (tmp_path / "infra.json").write_text('{"services": 3}')
    with pytest.raises(InfraError, match=r"infra\.json cannot be read: .*\$\.services"):
        load(tmp_path)
    code, _, err = ended(infra_command(tmp_path, "down"))
    assert (code, "infra.json cannot be read" in err) == (1, True)

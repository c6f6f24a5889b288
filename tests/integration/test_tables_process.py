"""The assembling worker as a process on a real broker: killed in the middle, each table is still announced once."""

import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from facade.kernel.bus.port import Record
from tests.conftest import Deploy
from tests.support.deployment import ICD, Deployment
from tests.support.processes import Running
from tests.support.tables import cut
from tests.support.waiting import until

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

NO_TANGO = "127.0.0.1:1"
SIZE = 20_000_000


def assembler(deployment: Deployment, slot: str = "0") -> Running:
    return deployment.start(f"assemble-{slot}", ["sdp-facade", "tables", "assemble", "--slot", slot])


def tables(deployment: Deployment, *arguments: str | Path) -> subprocess.CompletedProcess[bytes]:
    return deployment.run("tables", *arguments)


def said(deployment: Deployment, state: str) -> list[dict[str, Any]]:
    found = deployment.messages("tables")
    values = [json.loads(message.value()) for message in found if message.value() is not None]
    return [value for value in values if value["state"] == state]


def accounts(deployment: Deployment) -> list[dict[str, Any]]:
    found = deployment.messages("accounts")
    return [json.loads(message.value()) for message in found]


def put(deployment: Deployment, file: Path, product: str, *arguments: str) -> str:
    done = tables(deployment, "put", file, "--product", product, "--kind", "sky-model", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode().strip()


def test_a_kill_in_the_middle_loses_and_doubles_nothing(deploy: Deploy, tmp_path: Path) -> None:
    """A table of which a part has come, a bad record and a whole one behind it; kill -9; the rest; fetched again."""
    deployment = deploy(prepare=False, tango_host=NO_TANGO)
    # Without its settings the broker compacts nothing within days: announcements are counted here.
    deployment.create_topics({"tables": replace(ICD.topics["tables"], config={})})
    content = random.Random(1).randbytes(SIZE)
    (tmp_path / "in").write_bytes(content)
    part = cut("held", content, 1_000_000, product="held")

    worker = assembler(deployment)
    deployment.send(*part[:10])
    deployment.send(Record(topic="calibration", key=b"held", value=b"no header"))
    name = put(deployment, tmp_path / "in", "held")
    until(lambda: said(deployment, "COMPLETE"), "the table behind it is complete")
    until(lambda: [one for one in said(deployment, "ASSEMBLING") if one["segments"] == 10], "it is written down")
    worker.kill()
    worker = assembler(deployment)
    deployment.send(*part[10:])
    until(lambda: len(said(deployment, "COMPLETE")) > 1, "the other table is complete as well")
    other = put(deployment, tmp_path / "in", "other/1", "--segment", "300000", "--content-type", "application/fits")
    until(lambda: len(said(deployment, "COMPLETE")) > 2, "a third one is complete")
    until(lambda: consumed(deployment) >= 108, "all records are accounted for")
    assert worker.terminate() == 0

    assert [one["table"] for one in said(deployment, "COMPLETE")] == [name, "held", other]
    assert (consumed(deployment), consumed(deployment, "used")) == (108, 107)
    letters = deployment.messages("dead-letters")
    assert [dict(letter.headers())["dl.reason"] for letter in letters] == [b"no-header"]
    for wanted in ("held", "other/1", other):
        done = tables(deployment, "get", wanted, "-o", tmp_path / "out")
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "out").read_bytes() == content
    listed = tables(deployment, "list").stdout.decode()
    assert "other/1" in listed
    assert "COMPLETE" in listed
    done = tables(deployment, "get", "nothing", "-o", tmp_path / "none")
    assert done.returncode == 1
    assert "products held, other/1" in " ".join(done.stderr.decode().split())
    done = tables(deployment, "put", tmp_path / "in", "--product", "a!b", "--kind", "gains")
    assert done.returncode == 1
    assert "$.product" in done.stderr.decode()
    assert "Traceback" not in done.stderr.decode()


def test_a_reference_is_verified_where_its_table_lies_and_fetched_from_there(deploy: Deploy, tmp_path: Path) -> None:
    """A reference passes the bus, the table does not; one whose file was changed afterwards is not announced."""
    deployment = deploy(prepare=False, tango_host=NO_TANGO)
    deployment.create_topics()
    store, content = tmp_path / "store", random.Random(2).randbytes(1_000_000)
    store.mkdir()
    (tmp_path / "in").write_bytes(content)
    roots = {"SDP_TABLE_ROOTS": str(store)}
    for name in ("good", "changed"):
        words = ["--product", name, "--kind", "sky-model", "--reference", (store / name).as_uri()]
        deployment.command("tables", "put", str(tmp_path / "in"), *words, **roots)
    (store / "changed").write_bytes(content[::-1])

    worker = deployment.start("assemble-0", ["sdp-facade", "tables", "assemble", "--slot", "0"], **roots)
    until(lambda: said(deployment, "COMPLETE") and said(deployment, "FAILED"), "both references are judged")
    assert [one["product"] for one in said(deployment, "COMPLETE")] == ["good"]
    assert [one["reason"].partition(":")[0] for one in said(deployment, "FAILED")] == ["digest"]
    assert sum(len(message.value() or b"") for message in deployment.messages("calibration")) < 10_000
    deployment.command("tables", "get", "good", "-o", str(tmp_path / "out"), **roots)
    assert (tmp_path / "out").read_bytes() == content
    assert worker.terminate() == 0


def consumed(deployment: Deployment, what: str = "consumed") -> int:
    return sum(entry[what] for entry in accounts(deployment) if entry["stream"] == "calibration")

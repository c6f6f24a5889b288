"""Tables that are put into a file or a store, and fetched from there: whole or not at all, never over another."""

import hashlib
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from typer.testing import CliRunner

from facade.flows.tables import cli as cli
from facade.flows.tables.fetch import fetch, find
from facade.flows.tables.places import parse_roots
from facade.flows.tables.producer import TableProducer
from facade.flows.tables.references import References
from facade.kernel.cli.app import app
from facade.kernel.errors import ConfigError
from tests.support.stores import IO_ERROR, SCHEME, Faulty
from tests.support.tables import ICD, Desk

CONTENT = bytes(range(250)) * 30
MEDIA = "application/octet-stream"


@pytest.fixture
def root(request, tmp_path, monkeypatch):
    """Return the root of an empty store."""
    if request.param == "file":
        (tmp_path / "store").mkdir()
        return f"file://{tmp_path}/store"
    monkeypatch.setattr(MemoryFileSystem, "store", {})
    monkeypatch.setattr(MemoryFileSystem, "pseudo_dirs", [""])
    return "memory://bucket/tables"


@pytest.fixture
def desk():
    fsspec.register_implementation(SCHEME, Faulty, clobber=True)
    with Desk(memory=1_000_000) as bench:
        bench.bus.waits = True
        yield bench


def producer(bench: Desk) -> TableProducer:
    return TableProducer(bench.bus.writer(), bench.broker.clock, icd=ICD)


def stored(root: str) -> list[str]:
    """Return the names of what is in a store."""
    if root.startswith("file://"):
        return [path.name for path in Path(root.removeprefix("file://")).iterdir()]
    return [name.rpartition("/")[2] for name in MemoryFileSystem.store]


both = pytest.mark.parametrize("root", ["file", "memory"], indirect=True)


@both
@pytest.mark.parametrize("form", [bytes, Path])
@pytest.mark.parametrize("size", [0, len(CONTENT)])
def test_what_is_placed_is_announced_and_can_be_fetched(desk, tmp_path, root, form, size):
    content, told = CONTENT[:size], []
    (tmp_path / "in").write_bytes(content)
    desk.roots = parse_roots(root)
    desk.start()
    source = content if form is bytes else tmp_path / "in"
    header = producer(desk).place(
        f"{root}/t%201", "p", "gains", source, MEDIA, table="t", progress=lambda *what: told.append(what)
    )
    assert (header.size, header.sha256) == (size, hashlib.sha256(content).hexdigest())
    assert told == [("sent", size)][: size and 1]
    desk.work()
    assert desk.delivered == [("gains", content)]
    told.clear()
    output = tmp_path / "out"
    references = References(desk.roots, clock=desk.broker.clock, patience=float("inf"))
    fetch(
        desk.bus,
        find(desk.bus, "p"),
        output,
        desk.broker.clock,
        references=references,
        progress=told.append,
    )
    assert (output.read_bytes(), told) == (content, [size][: size and 1])
    assert len(stored(root)) == 1


@both
def test_nothing_is_replaced(desk, root):
    producer(desk).place(f"{root}/t", "p", "gains", CONTENT, MEDIA)
    with pytest.raises(ConfigError, match="is there already"):
        producer(desk).place(f"{root}/t", "p", "gains", b"other", MEDIA)
    assert len(desk.broker.read("calibration")) == 1


@both
def test_a_failure_on_the_way_leaves_nothing(desk, root):
    def fail(what, size):
        raise IO_ERROR

    with pytest.raises(ConfigError, match="cannot be put there"):
        producer(desk).place(f"{root}/t", "p", "gains", CONTENT, MEDIA, progress=fail)
    assert (stored(root), desk.broker.read("calibration")) == ([], [])


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("http://127.0.0.1:9/t", "read from"),
        ("https://me:HUSHHUSH@host/t", "without user"),
        ("s3://bucket/../t", r"without \. and \.\."),
        ("nothing://bucket/t", "cannot be read here|not known"),
        ("file://host/t", "absolute path"),
        ("file:///nothing/../t", "absolute path"),
        ("file:///nothing/t", "No such file"),
        ("file:///nothing/t#7", "%23 for #"),
        ("t", "scheme"),
    ],
)
def test_where_nothing_can_be_put_is_said(desk, url, what):
    with pytest.raises(ConfigError, match=what) as error:
        producer(desk).place(url, "p", "gains", CONTENT, MEDIA)
    assert "HUSHHUSH" not in str(error.value)
    assert desk.broker.read("calibration") == []


def test_the_command_puts_a_reference_and_gets_the_table(desk, tmp_path, monkeypatch):
    monkeypatch.setattr(cli, "KafkaBus", lambda *_, **__: desk.bus)
    monkeypatch.setattr(cli, "Connection", lambda *_, **__: None)
    monkeypatch.setenv("SDP_TABLE_ROOTS", str(tmp_path))
    monkeypatch.delenv("SDP_FACADE_CONFIG", raising=False)
    desk.roots = [tmp_path]
    desk.start()
    (tmp_path / "in").write_bytes(CONTENT)
    argv = ["--product", "sky", "--kind", "sky-model", "--reference", f"file://{tmp_path}/there"]
    done = CliRunner().invoke(app, ["tables", "put", str(tmp_path / "in"), *argv])
    assert (done.exit_code, (tmp_path / "there").read_bytes()) == (0, CONTENT), done.output
    desk.work()
    done = CliRunner().invoke(app, ["tables", "get", "sky", "-o", str(tmp_path / "out")])
    assert (done.exit_code, (tmp_path / "out").read_bytes()) == (0, CONTENT), done.output
    done = CliRunner().invoke(app, ["tables", "get", "sky", "-o", "."])
    assert (done.exit_code, "is a directory" in done.output) == (2, True), done.output

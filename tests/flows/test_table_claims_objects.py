"""References to object stores and web servers: only what is below an allowed URL, and it may fail in between."""

import errno
import hashlib
import os
import socket
import tracemalloc
from threading import Event

import fsspec
import pytest

from facade.flows.tables.messages import RecordRejected
from facade.flows.tables.places import parse_roots
from facade.flows.tables.references import References
from facade.kernel.clock import ManualClock
from tests.support.stores import IO_ERROR, SCHEME, Faulty, StatusError, until, web_server
from tests.support.tables import TABLE, read

SIZE, DIGEST = len(TABLE), hashlib.sha256(TABLE).hexdigest()
URL = f"{SCHEME}://bucket/tables/a"
HALF = TABLE[:1000]
WHOLE = (SIZE, [HALF, TABLE[1000:]])


@pytest.fixture(autouse=True)
def faulty():
    fsspec.register_implementation(SCHEME, Faulty, clobber=True)


def claims(*roots: str, **settings) -> References:
    return References(parse_roots(":".join(roots or (f"{SCHEME}://bucket/tables",))), clock=ManualClock(), **settings)


def check(checker: References, url: str = URL, size: int = SIZE, sha256: str = DIGEST) -> str:
    """Return the reason of a refusal, or the content."""
    found = read(checker, url, size, sha256)
    if isinstance(found, RecordRejected):
        assert "HUSHHUSH" not in found.detail
        return found.reason
    return found.decode()


@pytest.mark.parametrize(
    "root", ["memory://bucket/tables", "memory://bucket", "memory://bucket/", "/x:memory://bucket/tables/:/y"]
)
def test_an_object_below_the_root_is_taken(root):
    for name in ("t", "sub/a b", "sub/a%20b", "sub//x", "a:b,c=d+e~f'*[g]"):
        fsspec.filesystem("memory").pipe(f"bucket/tables/{name}", TABLE)
        assert check(claims(root), f"memory://bucket/tables/{name}") == TABLE.decode()
        assert check(claims(root), f"memory://bucket/tables/{name}", size=SIZE - 1) == "size"
        assert check(claims(root), f"memory://bucket/tables/{name}", size=SIZE + 1) == "size"
        assert check(claims(root), f"memory://bucket/tables/{name}", sha256="0" * 64) == "digest"
    assert check(claims(root, limit=100), "memory://bucket/tables/t") == "too-large"
    assert check(claims(root), "memory://bucket/tables/nothing") == "missing"


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("faulty://bucket/other/a", "forbidden"),
        ("faulty://bucket/tables", "forbidden"),
        ("faulty://bucket/tables/", "forbidden"),
        ("faulty://bucket/tables2/a", "forbidden"),
        ("faulty://bucket2/tables/a", "forbidden"),
        ("faulty://Bucket/tables/a", "forbidden"),
        ("faulty://bucket.evil/tables/a", "forbidden"),
        ("faulty://bucket:80/tables/a", "forbidden"),
        ("faulty:///bucket/tables/a", "forbidden"),
        ("faulty:bucket/tables/a", "forbidden"),
        ("faulty:/bucket/tables/a", "forbidden"),
        ("faulty://bucket//tables/a", "forbidden"),
        ("faulty://bucket\\tables/a", "forbidden"),
        ("faulty://bucket/Tables/a", "forbidden"),
        ("faulty://bucket/%74ables/a", "forbidden"),
        ("faulty://user@bucket/tables/a", "forbidden"),
        ("faulty://user:HUSHHUSH@bucket/tables/a", "forbidden"),
        ("faulty://user:HUSH/HUSHHUSH@bucket/tables/a", "forbidden"),
        ("faulty://bucket@evil/tables/a", "forbidden"),
        ("faulty://bucket/tables/a?key=HUSHHUSH", "forbidden"),
        ("faulty://bucket/tables/a?", "forbidden"),
        ("faulty://bucket/tables/a#HUSHHUSH", "forbidden"),
        ("faulty://bucket/tables/../secret", "forbidden"),
        ("faulty://bucket/tables/..", "forbidden"),
        ("faulty://bucket/tables/./a", "forbidden"),
        ("faulty://bucket/tables/%2e%2e/secret", "forbidden"),
        ("faulty://bucket/tables/.%2E/secret", "forbidden"),
        ("faulty://bucket/tables/..%2fsecret", "forbidden"),
        ("faulty://bucket/tables/%252e%252e%252fsecret", "forbidden"),
        ("faulty://bucket/tables/..\\secret", "forbidden"),
        ("faulty://bucket/tables/..%5csecret", "forbidden"),
        ("faulty://bucket/tables/..;x/secret", "forbidden"),
        ("faulty://bucket/tables/..%3bx/secret", "forbidden"),
        ("faulty://bucket/tables/a\0", "forbidden"),
        ("faulty://bucket/tables/a%00", "forbidden"),
        ("faulty://bucket/tables/a%0d%0aHost:x", "forbidden"),
        ("faulty://bucket/tables/.\t./a", "forbidden"),
        ("faulty://bucket/tables/%ff", "forbidden"),
        ("faulty://[/tables/a", "forbidden"),
        ("faulty://bucket/tables/" + "../" * 600, "forbidden"),
        (" faulty://bucket/tables/a", "not-configured"),
        ("faulty2://bucket/tables/a", "not-configured"),
        ("simplecache::faulty://bucket/tables/a", "not-configured"),
        ("filecache::file:///etc/passwd", "not-configured"),
        ("file:///etc/passwd", "not-configured"),
        ("local:///etc/passwd", "not-configured"),
        ("memory://bucket/tables/a", "not-configured"),
        ("http://169.254.169.254/latest/meta-data", "not-configured"),
        ("bucket/tables/a", "not-configured"),
        ("", "not-configured"),
    ],
)
def test_all_else_is_refused_without_being_asked_for(url, reason):
    Faulty.follow(WHOLE)
    assert check(claims(), url) == reason
    assert Faulty.opened == []


def test_chains_of_fsspec_are_names_like_any_other():
    Faulty.follow(WHOLE)
    assert check(claims(), "faulty://bucket/tables/a::file:///etc/passwd") == TABLE.decode()
    assert Faulty.opened == ["faulty://bucket/tables/a::file:///etc/passwd"]


@pytest.mark.parametrize(
    ("script", "expected", "attempts"),
    [
        pytest.param([WHOLE], "", 1, id="whole"),
        pytest.param([(None, [TABLE])], "", 1, id="a place that does not say the size"),
        pytest.param([FileNotFoundError("HUSHHUSH")], "missing", 1, id="not there"),
        pytest.param([OSError(errno.ENOENT, "x")], "missing", 1, id="not there, by number"),
        pytest.param([StatusError(404)], "missing", 1, id="not there, by status"),
        pytest.param([PermissionError("HUSHHUSH")], "denied", 1, id="no access"),
        pytest.param([StatusError(401)], "denied", 1, id="no key"),
        pytest.param([StatusError(403)], "denied", 1, id="no access, by status"),
        pytest.param([IsADirectoryError("x")], "forbidden", 1, id="a directory"),
        pytest.param([(SIZE + 1, [TABLE])], "size", 1, id="says another size"),
        pytest.param([(SIZE, [TABLE, b"x"])], "size", 1, id="longer than it says"),
        pytest.param([(None, [TABLE, b"x"])], "size", 1, id="longer than announced"),
        pytest.param([(None, [HALF])], "size", 1, id="shorter than announced"),
        pytest.param([(SIZE, [HALF, b"?" * (SIZE - 1000)])], "digest", 1, id="changes between reads"),
        pytest.param([IO_ERROR, TimeoutError("HUSHHUSH"), ConnectionError(), WHOLE], "", 4, id="opens in the end"),
        pytest.param([StatusError(503), StatusError(429), WHOLE], "", 3, id="a busy server"),
        pytest.param([(SIZE, [HALF, IO_ERROR]), WHOLE], "", 2, id="an error in the middle"),
        pytest.param([(SIZE, [HALF]), WHOLE], "", 2, id="the end in the middle"),
        pytest.param([(SIZE, [HALF, FileNotFoundError("x")])], "missing", 1, id="goes in the middle"),
        pytest.param([(SIZE, [HALF, IO_ERROR])], "unavailable", 6, id="an error in the middle each time"),
        pytest.param([TimeoutError()], "unavailable", 6, id="a time-out each time"),
        pytest.param([RuntimeError("HUSHHUSH")], "unavailable", 6, id="whatever a library raises"),
    ],
)
def test_what_may_pass_is_tried_again_and_the_rest_is_not(script, expected, attempts):
    Faulty.follow(*script)
    assert check(claims()) == (expected or TABLE.decode())
    assert len(Faulty.opened) == attempts


def test_no_more_is_read_than_one_byte_beyond_the_announced_size():
    Faulty.follow((None, [bytes(1_000_000)] * 10))
    assert check(claims(), size=1_500_000) == "size"
    assert Faulty.given == 1_500_001
    Faulty.follow((10_000_000, [bytes(1_000_000)] * 10))
    assert check(claims()) == "size"
    assert Faulty.given <= SIZE + 1


def test_memory_does_not_grow_with_the_table():
    size = 25_000_000
    digest = hashlib.sha256(bytes(size)).hexdigest()
    Faulty.follow((size, [lambda: bytes(1_000_000)] * 25))
    tracemalloc.start()
    try:
        assert read(claims(), URL, size, digest, keep=False) == b""
        assert tracemalloc.get_traced_memory()[1] < 12_000_000
    finally:
        tracemalloc.stop()
    assert Faulty.given == size


def test_a_place_that_hangs_is_left_alone_and_tried_again_later(tmp_path):
    """Each read of it left a thread behind, and held up the worker for as long as it tries."""
    free = Event()
    (tmp_path / "a").write_bytes(TABLE)
    checker = claims(f"{SCHEME}://bucket/tables", str(tmp_path), silence=0.2)
    Faulty.follow((SIZE, [HALF, until(free)]))
    assert check(checker) == "unavailable"
    assert len(Faulty.opened) == 3
    assert check(checker) == "unavailable"
    assert len(Faulty.opened) == 3, "at once, without a further thread"
    assert check(checker, f"file://{tmp_path}/a") == TABLE.decode(), "another root is read meanwhile"
    checker.clock.sleep(300.0)
    Faulty.follow(WHOLE)
    assert check(checker) == TABLE.decode()
    assert check(checker) == TABLE.decode(), "it has answered, though three threads still hang"
    free.set()


def test_a_place_that_hangs_is_no_other_whose_name_is_in_its_own(tmp_path):
    """As with the roots /data and /mnt, and a table at /mnt/data/x."""
    free = Event()
    (tmp_path / "a b").write_bytes(TABLE)
    checker = claims(f"{SCHEME}://bucket", str(tmp_path), silence=0.1)
    Faulty.follow((SIZE, [until(free)]))
    for _ in range(2):
        assert check(checker, f"{SCHEME}://bucket{tmp_path}/x") == "unavailable"
    assert check(checker, f"file://{tmp_path}/a%20b") == TABLE.decode()
    free.set()


def test_nothing_is_asked_of_a_mount_when_a_process_starts(tmp_path, monkeypatch):
    """One that hangs would hold up its start."""

    def hang(*_, **__):
        raise AssertionError("a mount was asked")

    for name in ("stat", "lstat", "readlink", "open", "scandir"):
        monkeypatch.setattr(os, name, hang)
    References(parse_roots(f"{tmp_path}/a:file://{tmp_path}/b"))


def test_one_that_trickles_is_given_up():
    clock = ManualClock()
    checker = References(parse_roots(f"{SCHEME}://bucket/tables"), clock=clock, patience=10.0)
    Faulty.follow((SIZE, [lambda: (clock.sleep(1), TABLE[:1])[1]] * SIZE))
    assert check(checker) == "unavailable"
    assert len(Faulty.opened) == 1


def test_a_web_server_is_read_and_not_followed_elsewhere():
    good = (200, {}, TABLE)
    with web_server({"/secret": [good]}) as (other, asked_elsewhere):
        away = (302, {"Location": f"http://{other}/secret"}, b"")
        answers = {
            "/tables/a%20b": [good],
            "/tables/busy": [(503, {}, b""), good],
            "/tables/cut": [(200, {"Content-Length": "9999"}, TABLE), good],
            "/tables/away": [away],
            "/tables/inside": [(302, {"Location": "/secret"}, b"")],
            "/tables/shut": [(403, {}, b"")],
            "/tables/endless": [(200, {}, TABLE * 1000)],
            "/tables/short": [(200, {}, HALF)],
            "/secret": [good],
        }
        with web_server(answers) as (host, asked):
            found = {}
            for name in ("a%20b", "busy", "cut", "away", "inside", "shut", "endless", "short", "nothing"):
                found[name] = check(claims(f"http://{host}/tables"), f"http://{host}/tables/{name}")
                found[name] = "good" if found[name] == TABLE.decode() else found[name]
            assert check(claims(f"http://{host}/tables"), f"http://{other}/secret") == "forbidden"
    assert found == {
        "a%20b": "good",
        "busy": "good",
        "cut": "good",
        "away": "forbidden",
        "inside": "forbidden",
        "shut": "denied",
        "endless": "size",
        "short": "size",
        "nothing": "missing",
    }
    assert (asked_elsewhere, "/secret" in asked) == ([], False)


class Names:
    """A name server that gives one answer after the other, and the last one for ever."""

    def __init__(self, *addresses: str) -> None:
        self.left, self.asked = [*addresses], 0

    async def resolve(self, host, port, family):
        self.asked += 1
        address = self.left.pop(0) if len(self.left) > 1 else self.left[0]
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        return [{"hostname": host, "host": address, "port": port, "family": family, "proto": 0, "flags": 0}]


@pytest.mark.parametrize("address", ["127.0.0.1", "169.254.169.254", "0.0.0.0", "::1", "::ffff:127.0.0.1", "fe80::1"])
def test_the_address_that_is_judged_is_the_one_that_is_connected_to(monkeypatch, address):
    """A name is resolved once for each connection: what a second answer would be makes no difference."""
    monkeypatch.setattr("facade.flows.tables.places.socket.gethostname", lambda: "tables.test")
    with web_server({"/tables/a": [(200, {}, TABLE)]}) as (host, asked):
        root = f"http://tables.test:{host.partition(':')[2]}/tables"
        names = Names("127.0.0.1", "192.0.2.1")
        assert check(claims(root, resolve=names.resolve), f"{root}/a") == TABLE.decode()
        assert names.asked == 1
        monkeypatch.undo()
        names = Names(address)
        assert check(claims(root, resolve=names.resolve), f"{root}/a") == "forbidden"
    assert (names.asked, asked) == (1, ["/tables/a"])


@pytest.mark.parametrize(
    ("number", "expected"),
    [(errno.EMFILE, ""), (errno.EIO, ""), (errno.ESTALE, ""), (errno.EACCES, "denied"), (errno.ENOENT, "missing")],
)
@pytest.mark.parametrize("call", ["open", "read"])
def test_passing_troubles_of_this_host_are_tried_again(tmp_path, monkeypatch, call, number, expected):
    (tmp_path / "t").write_bytes(TABLE)
    troubles = [OSError(number, "x")] * 2
    real = getattr(__import__("os"), call)

    def fail(*args, **kwargs):
        if troubles:
            raise troubles.pop()
        return real(*args, **kwargs)

    monkeypatch.setattr(f"facade.flows.tables.places.os.{call}", fail)
    assert check(claims(str(tmp_path)), f"file://{tmp_path}/t") == (expected or TABLE.decode())
    monkeypatch.undo()

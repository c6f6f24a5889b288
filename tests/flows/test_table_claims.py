"""References: only what is below an allowed directory, of the right size and digest, is announced."""

import hashlib
import os

import pytest

from facade.flows.tables.messages import RecordRejected
from facade.flows.tables.references import References
from tests.support.tables import TABLE, Desk, read, refer

SIZE, DIGEST = len(TABLE), hashlib.sha256(TABLE).hexdigest()


def check(references: References, url: str, size=SIZE, sha256=DIGEST) -> str:
    """Return the reason of a rejection, or the content."""
    found = read(references, url, size, sha256)
    return found.reason if isinstance(found, RecordRejected) else found.decode()


@pytest.fixture
def root(tmp_path):
    """Return a directory with a table, beside another one with a secret."""
    (tmp_path / "root" / "sub").mkdir(parents=True)
    (tmp_path / "root" / "table").write_bytes(TABLE)
    (tmp_path / "root" / "sub" / "a b").write_bytes(TABLE)
    (tmp_path / "root2").mkdir()
    (tmp_path / "root2" / "secret").write_bytes(TABLE)
    return tmp_path / "root"


def test_a_file_below_the_root_is_taken(root):
    claims = References([root])
    for url in (f"file://{root}/table", f"file://localhost{root}/table", f"file://{root}/sub/a%20b"):
        assert check(claims, url) == TABLE.decode()
    (root / "link").symlink_to("table")
    assert check(claims, f"file://{root}/link") == TABLE.decode()


def test_the_root_may_be_a_link(root, tmp_path):
    (tmp_path / "alias").symlink_to(root)
    assert check(References([tmp_path / "alias"]), f"file://{tmp_path}/alias/table") == TABLE.decode()


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("file://{root}/nothing", "missing"),
        ("file://{root}/../root2/secret", "forbidden"),
        ("file://{root}/%2e%2e/root2/secret", "forbidden"),
        ("file://{root}/sub/../table", "forbidden"),
        ("file://{root}2/secret", "forbidden"),
        ("file://{root}2/nothing", "forbidden"),
        ("file://{root}/out", "forbidden"),
        ("file://{root}/outside/secret", "forbidden"),
        ("file://{root}/loop", "missing"),
        ("file://{root}/sub", "forbidden"),
        ("file://{root}/pipe", "forbidden"),
        ("file://{root}/table?x=1", "forbidden"),
        ("file://{root}/table%00", "forbidden"),
        ("file://{root}/%ff", "forbidden"),
        ("file://other.host{root}/table", "forbidden"),
        ("file:table", "forbidden"),
        ("file://[", "forbidden"),
        ("{root}/table", "not-configured"),
        ("http://127.0.0.1/table", "not-configured"),
        ("https://127.0.0.1/table", "not-configured"),
        ("s3://bucket/table", "not-configured"),
        ("", "not-configured"),
        ("file:///proc/self/environ", "forbidden"),
        ("file://" + "/x" * 900, "forbidden"),
    ],
)
def test_all_else_is_refused(root, path, reason):
    (root / "out").symlink_to(root.parent / "root2" / "secret")
    (root / "outside").symlink_to(root.parent / "root2")
    (root / "loop").symlink_to("loop")
    os.mkfifo(root / "pipe")
    assert check(References([root]), path.format(root=root)) == reason


def test_a_link_that_changes_on_the_way_leads_nowhere_else(root, monkeypatch):
    """A folder becomes a link after it was looked at; a table that is open stays the one that was opened."""
    claims, url = References([root]), f"file://{root}/sub/secret"
    (root / "sub" / "secret").write_bytes(TABLE)
    open_, read_ = os.open, os.read

    def swap(*args, **options):
        monkeypatch.setattr("facade.flows.tables.places.os.open", open_)
        (root / "sub").rename(root / "before")
        (root / "sub").symlink_to(root.parent / "root2")
        return open_(*args, **options)

    monkeypatch.setattr("facade.flows.tables.places.os.open", swap)
    assert check(claims, url) == "forbidden"

    def replace(number, size):
        monkeypatch.setattr("facade.flows.tables.places.os.read", read_)
        (root / "table").unlink()
        (root / "table").symlink_to(root.parent / "root2" / "other")
        return read_(number, size)

    (root.parent / "root2" / "other").write_bytes(bytes(SIZE))
    monkeypatch.setattr("facade.flows.tables.places.os.read", replace)
    assert check(claims, f"file://{root}/table") == TABLE.decode()


def test_size_and_digest_must_hold(root):
    claims, url = References([root], limit=3000), f"file://{root}/table"
    assert check(claims, url, size=SIZE + 1) == "size"
    assert check(claims, url, sha256="0" * 64) == "digest"
    (root / "large").write_bytes(bytes(3001))
    assert check(claims, f"file://{root}/large", size=3001) == "too-large"
    with (root / "sparse").open("wb") as file:
        file.truncate(2**40)
    assert check(claims, f"file://{root}/sparse", size=2**40) == "too-large"
    (root / "shut").write_bytes(TABLE)
    (root / "shut").chmod(0)
    assert check(claims, f"file://{root}/shut") == (TABLE.decode() if os.geteuid() == 0 else "denied")


def test_a_good_reference_is_announced_once_and_a_bad_one_set_aside(root):
    with Desk(root) as bench:
        good = f"file://{root}/table"
        bench.run(
            [refer(f"file://{root}/nothing", "bad"), refer(good), refer(good), refer(good, size=7), refer(good, "u")]
        )
        assert bench.delivered == [("gains", TABLE)] * 2
        said = bench.said("COMPLETE")
        assert [(one["table"], one["url"], one["received"], one["first_offset"]) for one in said] == [
            ("t", good, SIZE, 1),
            ("u", good, SIZE, 4),
        ]
        assert bench.said("FAILED")[0]["reason"].startswith("missing")
        assert bench.reasons() == ["missing", "reused-id"]
        assert bench.totals() == {
            "consumed": 5, "used": 2, "suppressed": 1, "duplicate": 1, "dead_lettered": 2, "missing": 1, "reused-id": 1
        }  # fmt: skip
        bench.start()
        bench.work()
        assert len(bench.said("COMPLETE")) == 2
        assert bench.totals()["consumed"] == 5

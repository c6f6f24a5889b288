"""The setting that says where tables may be: directories and URLs with a colon between."""

from pathlib import Path

import pytest

from facade.flows.tables.places import Address, parse_roots, shown, without_secrets
from facade.kernel.errors import ConfigError

S3 = Address("s3", "bucket", "/a/b")


@pytest.mark.parametrize(
    ("text", "roots"),
    [
        ("", []),
        (":", []),
        ("/a:/b", [Path("/a"), Path("/b")]),
        ("/a::/b:", [Path("/a"), Path("/b")]),
        ("/with space:relative/dir", [Path("/with space"), Path("relative/dir")]),
        ("file:///a b/c%20d", [Path("/a b/c d")]),
        ("s3://bucket/a/b", [S3]),
        ("S3://bucket/a/b", [S3]),
        ("s3://bucket", [Address("s3", "bucket", "")]),
        ("/a:s3://bucket/a/b:/c", [Path("/a"), S3, Path("/c")]),
        ("/a: s3://bucket/a/b : /c", [Path("/a"), S3, Path("/c")]),
        ("s3://bucket/a/b:s3://bucket/a/b", [S3, S3]),
        ("https://host:9000/t:http://host", [Address("https", "host:9000", "/t"), Address("http", "host", "")]),
        ("https://host:9000:/a", [Address("https", "host:9000", ""), Path("/a")]),
        ("http://[::1]:8080/t:/a", [Address("http", "[::1]:8080", "/t"), Path("/a")]),
        ("http://[::1]:/a", [Address("http", "[::1]", ""), Path("/a")]),
        ("memory:///x", [Address("memory", "", "/x")]),
    ],
)
def test_roots_are_read(text, roots):
    assert parse_roots(text) == roots


@pytest.mark.parametrize(
    "text",
    [
        "//host/a",
        "s3:///a",
        "s3://",
        "https://",
        "https://host:port/a",
        "file://host/a",
        "file://relative",
        "local:///etc",
        "local://x/etc",
        "https://me:HUSHHUSH@host/a",
        "https://me@host/a",
        "https://host/a?key=HUSHHUSH",
        "https://host/a#b",
        "s3://bucket/../a",
        "s3://bucket/%2e%2e/a",
        "/data s3://bucket/a",
        "https://host/a https://host/b",
    ],
)
def test_what_can_be_no_root_is_refused(text):
    with pytest.raises(ConfigError, match="SDP_TABLE_ROOTS") as error:
        parse_roots(text)
    assert "HUSHHUSH" not in str(error.value)


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("s3://bucket/a b", "s3://bucket/a b"),
        ("https://me:secret@host/a", "https:***@host/a"),
        ("https://me:se/cr@et@host/a", "https:***@host/a"),
        ("https://me:se\ncret@host/a", "https:***@host/a"),
        ("https://host/a?key=secret#x", "https://host/a?***"),
        ("https://host/a#secret", "https://host/a?***"),
        ("", ""),
    ],
)
def test_secrets_are_left_out(url, text):
    assert without_secrets(url) == text
    assert shown(url) == text

"""The account of a demo's logs: lines of rsyslog, of our own processes, and what nobody can read."""

import logging

from facade.runtime.log_export import Line, encode
from proving.demo.shipping import Came


def test_lines_are_counted_by_component_and_severity_whatever_holds_them() -> None:
    came = Came()
    came.add(b"<11>1 2026-11-25T10:00:00Z n7 flagger 7 - - one")
    came.add(b"<14>1 2026-11-25T10:00:00Z n7 flagger 7 - - two")
    lines = [
        Line(1, 0, logging.INFO, "a", "x"),
        Line(2, 0, logging.ERROR, "b", "y"),
        Line(3, 0, logging.INFO, "b", "z"),
    ]
    came.add(encode(lines, {"service.namespace": "sdp-facade", "service.name": "control"}))
    came.add(b"\xff\xfe what is this")
    assert (came.lines, came.nonsense) == (6, 1)
    assert came.programs == {"flagger": 2, "control": 3}
    assert came.severities == {"ERROR": 2, "INFO": 3}

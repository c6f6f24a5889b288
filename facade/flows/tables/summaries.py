"""Looks into complete tables; whatever is in them, this does not raise."""

import logging
from collections.abc import Callable
from typing import Any

from facade.errors import ConfigError
from facade.flows.tables.messages import SegmentHeader, encode
from facade.flows.tables.spool import Content

_log = logging.getLogger(__name__)

Summarise = Callable[[str, str, Content], dict[str, Any] | str]
"""Makes the summary of a table from kind, content type and content; a text is the reason why it cannot be used."""


class Summaries:
    """Makes the summaries of tables.

    Parameters
    ----------
    most
        Largest summary [bytes of JSON].
    """

    def __init__(self, summarise: Summarise, most: int) -> None:
        self._summarise, self._most = summarise, most

    def of(self, header: SegmentHeader, content: Content) -> dict[str, Any] | str:
        """Return the summary of a table; a text: why the table cannot be used."""
        try:
            summary = self._summarise(header.kind, header.content_type, content)
        except (ConfigError, OSError) as error:  # a library or a disk is missing here, and nothing with the table
            _log.warning("no summary table=%s kind=%s reason=%s", header.table, header.kind, error)
            return {"note": f"no summary could be made: {error!s:.500}"}
        except Exception as error:  # the bytes may be anything, and so is what a library raises
            _log.exception("summary failed table=%s kind=%s", header.table, header.kind)
            return f"{header.kind} as {header.content_type} cannot be read: {type(error).__name__}: {error!s:.200}"
        if not isinstance(summary, str) and (size := len(encode(summary))) > self._most:
            return {"note": f"the summary is too large: expected at most {self._most} bytes, got {size}"}
        return summary

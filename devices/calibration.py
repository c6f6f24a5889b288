"""The device of a subarray's calibration, which also returns the locations of whole tables."""

from typing import Any

import msgspec

from devices.kernel.mapping import Encoded
from devices.kernel.queries import QueriedDevice, refusal
from facade.flows.tables.contents import Contents
from facade.flows.tables.flow import TablesFlow, describe, products_of
from facade.flows.tables.messages import place


class SdpCalibration(QueriedDevice):
    """The calibration of one subarray."""

    def query_ListTables(self) -> str:  # noqa: N802 - Tango's name
        """Return the newest table of each product, as JSON."""
        tables = self._tables("ListTables")
        return _text([describe(one) for one in tables.of(self._prefix())])

    def query_GetTable(self, name: str) -> str:  # noqa: N802 - Tango's name
        """Return the location of a table, by its id or its product."""
        tables, prefix = self._tables("GetTable"), self._prefix()
        table = tables.find(prefix, name)
        if table is None:
            raise refusal(tables.unknown(prefix, name), "SdpCalibration.GetTable")
        return _text(describe(table, summary=True) | place(table))

    def query_GetTableContent(self, name: str) -> Encoded:  # noqa: N802 - Tango's name
        """Return the bytes of a small table, by its id or its product; never waits for the bus."""
        where = "GetTableContent"
        self._tables(where)
        contents = None if self.service is None else self.service.find(Contents)
        found = "the device server is still starting" if contents is None else contents.find(self._prefix(), name)
        if isinstance(found, str):
            raise refusal(found, f"SdpCalibration.{where}")
        return Encoded(found.table.content_type, found.content)

    def _prefix(self) -> str:
        return products_of(self.get_name())

    def _tables(self, command: str) -> TablesFlow:
        tables = None if self.service is None else self.service.find(TablesFlow)
        if tables is None or self.service is None or not self.service.has_read(tables.topic):
            raise refusal("the tables were not read from the bus yet; try again", f"SdpCalibration.{command}")
        return tables


def _text(content: Any) -> str:
    return msgspec.json.encode(content).decode()

"""The device of a subarray's calibration: what it shows comes from the pump, and it says where whole tables are."""

from typing import Any

import msgspec

from devices.base import FacadeDevice
from devices.queries import refusal, tango_query
from facade.icd.model import DeviceClass
from facade.tables.flow import TablesFlow, describe, location


class SdpCalibration(FacadeDevice):
    """The calibration of one subarray."""

    @classmethod
    def tango_commands(cls, entry: DeviceClass) -> dict[str, Any]:
        """Make the Tango commands of the class, by name."""
        return {one.name: tango_query(one) for one in entry.queries}

    def query_ListTables(self) -> str:  # noqa: N802 - Tango's name
        """Give what is known of each product."""
        tables = self._tables("ListTables")
        return _text([describe(one) for one in tables.of(self._prefix())])

    def query_GetTable(self, name: str) -> str:  # noqa: N802 - Tango's name
        """Say where a table is, by its id or its product."""
        found = list(self._tables("GetTable").of(self._prefix()))
        for table in found:
            if table.state == "COMPLETE" and name in (table.table, table.product):
                return _text(describe(table, summary=True) | location(table))
        known = ", ".join(sorted({one.product for one in found if one.state == "COMPLETE"})) or "none yet"
        what = f"expected the id of a complete table of this subarray, or one of its products ({known}), got {name!r}"
        raise refusal(what, "SdpCalibration.GetTable")

    def _prefix(self) -> str:
        return f"subarray/{self.get_name().rsplit('/', 1)[-1]}/"

    def _tables(self, command: str) -> TablesFlow:
        if self.service is None or self.service.tables is None or not self.service.pump.has_read("tables"):
            raise refusal("the tables were not read from the bus yet; try again", f"SdpCalibration.{command}")
        return self.service.tables


def _text(content: Any) -> str:
    return msgspec.json.encode(content).decode()

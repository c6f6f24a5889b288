"""A device server with many attributes that push change events, nothing of ours: ``python many_attributes.py PORT``."""

import sys
from typing import Any

from tango.server import Device, attribute, command, run

DEVICE = "test/many/0"
ATTRIBUTES = [f"figure{number}" for number in range(450)]


class Many(Device):
    """Shows one figure under many names."""

    def init_device(self) -> None:
        super().init_device()
        for name in ATTRIBUTES:
            self.set_change_event(name, True, False)

    def read_figure(self, _: Any) -> float:
        return 1.0

    for _name in ATTRIBUTES:
        locals()[_name] = attribute(name=_name, dtype=float, fget="read_figure")

    @command
    def Push(self) -> None:
        for name in ATTRIBUTES:
            self.push_change_event(name, 2.0)


if __name__ == "__main__":
    endpoint = f"giop:tcp:127.0.0.1:{sys.argv[1]}"
    run((Many,), args=["Many", "test", "-nodb", "-dlist", DEVICE, "-ORBendPoint", endpoint])

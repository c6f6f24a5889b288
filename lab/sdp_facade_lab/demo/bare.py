"""A device server with one device, no ICD and no bus: how long it takes to start is the demo's baseline."""

import sys

from tango.server import Device, run

from facade.infra.ports import HOST

DEVICE = "demo/baseline/1"


class Bare(Device):
    """Nothing but a device."""


def main(port: str) -> None:
    run((Bare,), args=["Bare", "demo", "-nodb", "-dlist", DEVICE, "-ORBendPoint", f"giop:tcp:{HOST}:{port}"])


if __name__ == "__main__":
    main(sys.argv[1])

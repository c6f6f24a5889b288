"""A small observatory, with a weather station and a dome, on the kernel alone: its two executables."""

import os
from pathlib import Path

# Before any module of the kernel: it takes the names and the interface of the facility from this folder.
os.environ["FACADE_INTERFACE"] = str(Path(__file__).parent / "interface")


def run() -> None:
    """Run the command line, which has the sub-commands of the manifests."""
    from facade.kernel.cli.app import run

    run()


def serve() -> None:
    """Run the Tango device server, with the devices that the Tango database lists for an instance."""
    from devices.kernel.server import main

    main()

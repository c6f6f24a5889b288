"""Sub-commands of ``sdp-facade`` for device servers."""

from facade.kernel.manifest import Subcommand

SUBCOMMANDS = (
    Subcommand(
        ("register",), "devices.cli:register_devices", "Register the devices in the Tango database.", section="Deploy"
    ),
    Subcommand(("serve",), "devices.cli:serve", "Run one device server in the foreground.", section="Deploy"),
)

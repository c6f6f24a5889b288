"""What each device server tells of its devices, and the overview where its devices are."""

from facade.flows.overview.manifest import MANIFEST
from facade.kernel.runtime.composition import Server
from facade.sdp.complaints import complain


def compose(server: Server) -> None:
    """Add the complaints to any device server, and the overview to the server of its devices."""
    complain(server)
    if any(server.devices.get(name) for name in MANIFEST.device_classes):
        from facade.flows.overview.views import compose as add

        add(server)

"""What a device server needs for SdpMaster and SdpBus."""

from facade.flows.overview.health import Overview
from facade.flows.overview.presence import Presence
from facade.flows.overview.views import BusView, MasterView
from facade.runtime.composition import Server
from facade.runtime.device_state import TOPIC as STATES
from facade.runtime.stream_accounts import ReaderAccounts, WorkerAccounts

MASTER, BUS = "SdpMaster", "SdpBus"


def compose(server: Server) -> None:
    """Add the overview to a device server."""
    workers, readers = server.share(WorkerAccounts), ReaderAccounts()
    server.flows += [workers, readers]
    flows = [Presence(server, readers.newest_us), *server.health_sources()]
    overview = Overview(server.icd.classes[BUS], server.bus.health, workers, readers, flows)
    server.views += [BusView(device, server.icd.classes[BUS], overview) for device in server.devices.get(BUS, ())]
    for device in server.devices.get(MASTER, ()):
        view = MasterView(device, overview, server.states, lambda: server.has_read(STATES), server.versions)
        server.views.append(view)
    if server.devices.get(MASTER):
        server.report(overview.find, overview.finds, STATES, workers.topic, readers.topic)

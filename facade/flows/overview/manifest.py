"""The overview: SDP as a whole and the bus itself, from the accounts of all streams and the health of all flows."""

from facade.kernel.manifest import Isolation, Manifest

MANIFEST = Manifest(
    name="overview",
    summary="SDP as a whole, and the message bus: health with its reasons, accounts of all streams.",
    topics={
        "heartbeats": Isolation.READ_COMMITTED,
        "accounts": Isolation.READ_COMMITTED,
        "positions": Isolation.READ_COMMITTED,
        "snapshots": Isolation.READ_COMMITTED,
        "dead-letters": Isolation.READ_COMMITTED,
        "page-acts": Isolation.READ_COMMITTED,
    },
    set_aside_by={"heartbeats": "subarray"},
    device_classes={"SdpMaster": "devices.commands:CommandedDevice", "SdpBus": "devices.kernel.base:FacadeDevice"},
    compose="facade.flows.overview.composition:compose",
    for_all=True,
    processes={"olog": ("olog", "ADDRESS")},
    audit={"page-acts": "facade.flows.overview.page_acts:page_entry"},
)

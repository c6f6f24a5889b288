"""The names that this distribution has for its users: the only place where the kernel has them."""

from typing import Final

DISTRIBUTION: Final = "sdp-tango-facade"
PROGRAM: Final = "sdp-facade"
SERVER: Final = "SdpFacade"
"""Executable of the Tango device server, and its name in the Tango database."""
VARIABLES: Final = "SDP_"
"""Begin of the environment variables."""
ENTRY_POINTS: Final = "sdp_facade"
"""Begin of the groups of entry points."""
SHORT: Final = "sdp"
"""Begin of the names of metrics, of attributes in exported logs, and of the attribute with all versions."""
TELESCOPE: Final = "mid"
"""Telescope of whose devices the interface has the names; a deployment may have another one: see `domain`."""
SCHEMAS: Final = "https://schema.skao.int/ska-sdp-"
"""Begin of the names by which arguments of commands tell their schema."""

OTHER_SIDE: Final = "SDP"
"""The system whose processes use the bus beside the facade."""
FAMILIES: Final = {
    "node": ("ingest node", 0, "nodes"),
    "subarray": ("subarray", 1, "subarrays"),
    "archive": ("archive worker", 0, "archives"),
}
"""Numbered devices of a deployment, by the field in their names: word, lowest number, setting of their number."""


def domain(telescope: str) -> str:
    """Return the first part of the names of the devices of a telescope, such as ``mid-sdp``."""
    return f"{telescope}-{SHORT}"

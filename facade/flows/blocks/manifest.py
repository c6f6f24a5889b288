"""Processing blocks: their states from controllers, by subarray and for SDP as a whole."""

from facade.kernel.manifest import FlowPage, Isolation, Manifest

MANIFEST = Manifest(
    name="blocks",
    summary="Processing blocks: states, progress and failures of what runs for each execution block.",
    topics={"processing-blocks": Isolation.READ_COMMITTED},
    set_aside_by={"processing-blocks": "subarray"},
    compose="facade.flows.blocks.flow:compose",
    for_commands=True,
    health="facade.flows.blocks.flow:BlocksHealth",
    page=FlowPage(
        title="Processing blocks",
        attributes=dict.fromkeys(
            ("SdpMaster", "SdpSubarray"),
            (
                *("processingBlocks", "blocksRunning", "blocksStarting", "blocksWaiting", "blocksFinished"),
                *("blocksFailed", "newestFailure"),
            ),
        ),
    ),
)

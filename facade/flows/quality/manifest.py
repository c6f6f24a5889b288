"""Quality metrics: arrays that a quality pipeline computes from the data, each in one record."""

from facade.kernel.manifest import FlowPage, Isolation, Manifest, Subcommand

MANIFEST = Manifest(
    name="quality",
    summary="Quality metrics of each subarray as spectra and images with units.",
    topics={"quality": Isolation.READ_COMMITTED},
    device_classes={"SdpQuality": "devices.kernel.base:FacadeDevice"},
    compose="facade.flows.quality.flow:compose",
    subcommands=(
        Subcommand(("simulate", "quality"), "facade.flows.quality.simulator:quality", "Simulate a quality pipeline."),
    ),
    page=FlowPage(
        title="Quality",
        over=dict.fromkeys(("bandpassSpectrum", "flaggedFractionChannel"), "channelFrequencies")
        | dict.fromkeys(("flaggedFractionAntenna", "noiseAntenna"), "antennaNames")
        | {"visibilityAmplitude": "visibilityFrequencies"},
        waterfalls=("bandpassSpectrum",),
    ),
)

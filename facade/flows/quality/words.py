"""What the AsyncAPI document says of quality metrics."""

from facade.manifest import Part, Words

WORDS = Words(
    introduction=("You compute quality metrics: write `quality`.",),
    parts=(
        Part("send", "quality", "Send the newest array of each metric."),
        Part("receive", "quality", "Show the metrics of each subarray."),
    ),
    headers={"quality": ("metric", "metric")},
    examples={
        "metric": {
            "schema": "metric/1",
            "subarray": 1,
            "metric": "noiseAntenna",
            "time": 1795282430808302,
            "encoding": "npy",
            "shape": [197],
            "dtype": "float64",
            "unit": "Jy",
        },
    },
    keys={"metric": "subarray/01/noiseAntenna"},
)

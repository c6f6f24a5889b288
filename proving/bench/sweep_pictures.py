"""The pictures of the page of the papers' tables."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from proving.bench.sweep_figures import Sweep, mean, rate, size_text
from proving.bench.sweep_points import MB


def pictures(sweep: Sweep) -> Iterator[tuple[str, Callable[[Any], None]]]:
    """Return the name of each picture, and what draws it on a pair of axes."""

    def draw_size(axes: Any) -> None:
        found = sweep.series("size")
        for flow in ("in", "out"):
            axes[0].plot([one.point.size for one in found], [rate(one, flow) * one.point.size / MB for one in found],
                         "o-", label=flow)  # fmt: skip
        axes[0].set(xscale="log", yscale="log", xlabel="size [B]", ylabel="throughput [MB/s]")
        for field in ("p50", "p99", "p999"):
            timed = [one for one in found if one.delay is not None]
            axes[1].plot([one.point.size for one in timed], [getattr(one.delay, field) * 1e3 for one in timed], "o-",
                         label={"p999": "p99.9"}.get(field, field))  # fmt: skip
        axes[1].set(xscale="log", yscale="log", xlabel="size [B]", ylabel="delay [ms]")

    def draw_partitions(axes: Any) -> None:
        found = sweep.series("partitions")
        for flow in ("in", "out"):
            axes[0].plot(
                [one.point.partitions for one in found], [rate(one, flow) / 1e3 for one in found], "o-", label=flow
            )
        axes[0].set(xlabel="partitions", ylabel="thousand messages/s", ylim=0)
        for count in (1, 20):
            found = sweep.series("producers", partitions=count)
            axes[1].plot([one.point.producers for one in found], [rate(one, "in") / 1e3 for one in found], "o-",
                         label=f"{count} partition{'s' if count > 1 else ''}")  # fmt: skip
        axes[1].set(xlabel="producers", ylabel="thousand messages/s in", ylim=0)

    def draw_codec(axes: Any) -> None:
        for size in (256, MB):
            found = sweep.series("codec", size=size, unpacked=False)
            names = [one.point.codec for one in found]
            axes[0].plot(names, [rate(one, "in") * size / MB for one in found], "o-", label=size_text(size))
            axes[1].plot(names, [one.stored / size for one in found], "o-", label=size_text(size))
        axes[0].set(ylabel="in [MB/s]", ylim=0)
        axes[1].set(ylabel="stored / sent", ylim=0)

    def draw_segments(axes: Any) -> None:
        for axis, side, name in zip(axes, ("in", "out"), ("producer", "consumer"), strict=True):
            for count in (1, 20):
                found = [one for one in sweep.series("segments", partitions=count) if one.large[side].each]
                times = [float(mean(one.large[side])) for one in found]
                axis.plot([one.point.size / 1e3 for one in found], times, "o-",
                          label=f"{count} partition{'s' if count > 1 else ''}")  # fmt: skip
            axis.set(xscale="log", yscale="log", xlabel="segment [kB]", ylabel=f"100 MB, {name} [s]")

    yield "size", draw_size
    yield "partitions", draw_partitions
    yield "codec", draw_codec
    yield "segments", draw_segments


def draw(sweep: Sweep, folder: Path) -> None:
    """Write the pictures: SVG files that look the same in light and dark."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.hashsalt": "sweep", "font.size": 11}):
        for name, fill in pictures(sweep):
            figure = Figure(figsize=(9, 3.4), layout="constrained")
            axes = figure.subplots(1, 2)
            fill(axes)
            for axis in axes:
                axis.grid(alpha=0.3)
                axis.legend()
            figure.savefig(folder / f"sweep-{name}.svg", metadata={"Date": None})

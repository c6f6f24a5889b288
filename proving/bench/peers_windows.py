"""How long after its end a window of 1 s is there, under the load of four nodes.

Of ours that is the event in a Tango client in another process; of the stream processors it is the committed record,
with no way to a client behind it. A window counts from the last thing that was said of it.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from proving.bench import peers_java
from proving.bench.latency import ATTRIBUTE, WARM_UP
from proving.bench.listening import listen
from proving.bench.load import NODES, RATE, stream
from proving.bench.report import Verdict, quantiles
from proving.testbed import Testbed

LENGTH: Final = 1.0
"""Of a window, here and in `proving/java` [s]."""
_WARM_UP: Final = 20.0
"""For the compiler of a virtual machine [s]."""
_LAST: Final = 3.0
"""After so long the last window is committed [s]."""

Window = tuple[int, int]
"""A node, and the number of a window since 1970."""


def measure(testbed: Testbed, names: Iterable[str], *, quick: bool) -> dict[str, list[float]]:
    """Return how long after their ends windows were there [s], by way."""
    seconds = 10.0 if quick else 30.0
    found = {"worker, to the event": _ours(testbed, seconds)}
    for name in names:
        with testbed.deployment(f"peers-{name}", nodes=NODES) as made:
            stream(made, RATE)
            _, target = peers_java.start(made, name, peers_java.UNBOUNDED, "live")
            begin = made.clock.now() + _WARM_UP
            last = peers_java.newest(made, target, _WARM_UP + seconds + _LAST)
            found[f"{peers_java.PEERS[name]}, to the record"] = after_ends(last, begin, begin + seconds)
    return found


def verdicts(found: Mapping[str, list[float]]) -> tuple[Verdict, ...]:
    """Say how long after its end a window was there, for each way; there is no bar."""
    made = []
    for what, each in found.items():
        spread = quantiles(each)
        text = spread.text(1000, "ms") + " windows" if spread else "-"
        made.append(Verdict(what=f"window there after its end, {what}", bar="", found=text))
    return tuple(made)


def after_ends(last: Mapping[Window, float], begin: float, end: float) -> list[float]:
    """Return how long after its end each window was there that lies between two times [Unix s]."""
    lengths = {window: (window[1] * LENGTH, (window[1] + 1) * LENGTH) for window in last}
    return [last[window] - over for window, (since, over) in lengths.items() if begin <= since and over <= end]


def _ours(testbed: Testbed, seconds: float) -> list[float]:
    with testbed.system("peers-ours", nodes=NODES) as running:
        nodes = {device: number for number, device in enumerate(running.devices("SdpIngestNode"))}
        heard = listen(running, [ATTRIBUTE], RATE, seconds, warm_up=WARM_UP)
    last: dict[Window, float] = {}
    for event in heard.listened.events:
        window = nodes[event.device], int(event.time // LENGTH)
        last[window] = max(event.received, last.get(window, 0.0))
    return after_ends(last, heard.begin, heard.end)

"""How late notifications are shown: each one from its own time to the Tango event that shows it.

The notifications are read from their topic. An event has the time of its newest data,
so the first event with the time of a notification or a later one shows it. Of an attribute with windows, it must be
an event of its own window: an event of a later one shows other notifications.
"""

from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from facade.flows.quality.records import METRIC, QUALITY
from facade.kernel.bus.kafka.bus import KafkaBus
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.kafka.reader import KafkaReader
from facade.kernel.clock import SECOND, as_duration
from facade.kernel.errors import InfraError
from facade.kernel.icd.load import load
from facade.sdp.batches import BatchReader, ReadBatch, Refused, is_batch
from sdp_facade_lab.bench.listening import HeardEvent, Listening, listen
from sdp_facade_lab.bench.load import METRICS, NODES, RATE
from sdp_facade_lab.bench.report import BarVerdict, BenchOutcome, Quantiles, at_most, quantiles
from sdp_facade_lab.deployment import Deployment
from sdp_facade_lab.gauges import in_words
from sdp_facade_lab.roles import RoleContext
from sdp_facade_lab.testbed import Testbed

Delays = npt.NDArray[np.float64]
"""[s]; infinite: it was not shown."""

_TAKE, _WAIT = 10_000, 0.2
"""Records of one call, and longest wait for them [s]."""


class Watched(NamedTuple):
    """Notifications of one sender, and the attribute that shows them."""

    topic: str
    key: str
    """Key of their records; empty: any."""
    device: str
    attribute: str
    window: float = 0.0
    """Length of the windows of the attribute [s]; 0: it has the newest value, or a total."""


class _Timed(msgspec.Struct):
    time: int


_decode = msgspec.json.Decoder(_Timed).decode


def delays_of(
    heard: Listening, watched: Collection[Watched], sent: Mapping[str, Mapping[str, Sequence[int]]]
) -> Mapping[Watched, Delays]:
    """Return the delays of the notifications that were sent while events were counted; `sent`: see `read_times`."""
    begin, end = (round(time * int(SECOND)) for time in (heard.begin, heard.end))
    events: dict[tuple[str, str], list[HeardEvent]] = {}
    for event in heard.listened.events:
        events.setdefault((event.device, event.attribute), []).append(event)
    found = {}
    for one in watched:
        times = np.asarray(sent[one.topic][one.key], np.int64)
        times = times[(begin <= times) & (times < end)]
        found[one] = shown_after(times, events.get((one.device, one.attribute), ()), one.window)
    return found


def keys_of(watched: Collection[Watched]) -> dict[str, list[str]]:
    """Return the keys of the notifications by their topics."""
    keys: dict[str, list[str]] = {}
    for one in watched:
        if one.key not in keys.setdefault(one.topic, []):
            keys[one.topic].append(one.key)
    return keys


def read_times(
    connection: Connection, keys: Mapping[str, Collection[str]], is_over: Callable[[KafkaReader], bool]
) -> dict[str, dict[str, "array[int]"]]:
    """Read topics from their beginning; return the own times of notifications [Unix us], by topic and key."""
    found = {topic: {key: array("q") for key in some} for topic, some in keys.items()}
    batches = BatchReader(load().messages["heap"], ["time"])
    reader = KafkaBus(connection, client="bench-times").open_reader(dict.fromkeys(keys), {})
    try:
        while not is_over(reader):
            for columns in reader.take_columns(_TAKE, _WAIT):
                by_key = found[columns.topic]
                for key, value, headers in zip(columns.keys, columns.values, columns.headers, strict=True):
                    times = by_key.get("" if "" in by_key else (key or b"").decode())
                    if times is None or value is None:
                        continue
                    if is_batch(value):
                        times.frombytes(_times_in(batches.read(value, headers)).tobytes())
                    else:
                        times.append(_decode(dict(headers)[METRIC] if columns.topic == QUALITY else value).time)
    finally:
        reader.close()
    return found


def follow(context: RoleContext, *, keys: dict[str, list[str]]) -> dict[str, dict[str, list[int]]]:
    """Read the times of notifications as they come, until called off: compaction removes some of them."""
    context.announce()
    connection = Connection(context.settings, clock=context.clock)
    found = read_times(connection, keys, lambda reader: context.called_off and all(map(reader.caught_up, keys)))
    return {topic: {key: times.tolist() for key, times in some.items()} for topic, some in found.items()}


def _times_in(batch: ReadBatch | Refused) -> npt.NDArray[np.int64]:
    if isinstance(batch, Refused):
        raise InfraError(f"expected a batch that can be read, got one that cannot: {batch.why}")
    return batch.content.columns["time"].astype(np.int64) + batch.header.bases.get("time", 0)


def shown_after(times: npt.NDArray[np.int64], events: Sequence[HeardEvent], window: float) -> Delays:
    """Return how long after its own time each notification was shown.

    Parameters
    ----------
    times
        Own times of the notifications [Unix us].
    events
        Events of the attribute that shows them, in any order.
    window
        Length of the windows of the attribute [s]; 0: none.
    """
    came = sorted(events, key=lambda event: event.received)
    newest = np.array([round(event.time * int(SECOND)) for event in came], np.int64)
    newest = np.maximum.accumulate(newest)
    at = np.searchsorted(newest, times)
    shown = np.array([*(event.received for event in came), np.inf])[at] - times / int(SECOND)
    if window:
        length = int(as_duration(window))
        shown[np.append(newest // length, -1)[at] != times // length] = np.inf
    return shown


# Streams of a low rate

_LOW_RATE_BAR, _METRIC_BAR = 3.0, 1.0
"""SDP memo 052, 11.2.3: notifications of a low rate within 1 to 3 s; those that cannot wait, within 1 s."""
_EACH: Final = 0.93
"""Records/s of a sender: with 1/s, all would come at the same place of their windows."""
_FLAGGING: Final = 10.0
"""Length of the windows of `flagging` [s]."""
_WARM_UP: Final = 15.0
_LAST_EVENTS: Final = _FLAGGING + 5.0
_SLOW: Final = {"ingest.buffers": NODES, "flagging": 1, "storage": 1}
"""Senders of each topic."""


def low_rate(testbed: Testbed, *, quick: bool) -> BenchOutcome:
    seconds = 40.0 if quick else 300.0
    with testbed.system("low-rate", nodes=NODES) as running:
        watched = _watched(running)
        for topic, senders in _SLOW.items():
            groups = ["--group", "1"] if topic == "flagging" else []
            running.launch(f"simulate-{topic}", "simulate", "telemetry", topic, "--rate", _EACH * senders, *groups)
        running.launch(
            "simulate-quality", "simulate", "quality", "--rate", _EACH, f"--megabytes-per-second={METRICS:g}"
        )
        attributes: dict[str, list[str]] = {}
        for one in watched:
            attributes.setdefault(one.device, []).append(one.attribute)
        follower = running.play(follow, keys=keys_of(watched))
        heard = listen(running, attributes, RATE, seconds, warm_up=_WARM_UP, last_events=_LAST_EVENTS)
        follower.call_off()
        sent = running.result(follower, dict[str, dict[str, list[int]]], 60.0)
        found = {one: quantiles(delays) for one, delays in delays_of(heard, watched, sent).items()}
    return BenchOutcome(
        what=f"own time of a notification of a low rate, or of a metric at {METRICS:g} MB/s -> Tango event that shows"
        f" it, beside {RATE:,.0f} heap notifications/s",
        verdicts=tuple(_verdict(one, spread) for one, spread in found.items()),
        notes=(
            *(
                f"{one.topic}: {one.attribute} {spread.text(1, 's') if spread else '-'}"
                for one, spread in found.items()
            ),
            f"the client got {heard.listened.errors} errors ({heard.listened.last_error}) and {heard.listened.invalid}"
            f" invalid values; the sender of heaps slipped by {heard.sent.slipped:.2f} s",
            in_words(heard.cores),
        ),
    )


def _watched(running: Deployment) -> Sequence[Watched]:
    node, quality, sdp = (running.devices(name)[0] for name in ("SdpIngestNode", "SdpQuality", "SdpMaster"))
    return (
        Watched("ingest.buffers", "0", node, "bufferFillMean", 1.0),
        Watched("flagging", "1", quality, "visibilitiesFlagged", _FLAGGING),
        Watched("flagging", "1", quality, "visibilitiesFlaggedTotal"),
        Watched("storage", "", sdp, "productsStoredTotal"),
        *(Watched(QUALITY, f"subarray/01/{name}", quality, name) for name in ("flaggedFraction", "noiseAntenna")),
    )


def _verdict(one: Watched, spread: Quantiles | None) -> BarVerdict:
    bar = _METRIC_BAR if one.topic == QUALITY else _LOW_RATE_BAR
    return at_most(f"{one.topic}: p99 until {one.attribute} shows it", spread.p99 if spread else None, bar, "s")

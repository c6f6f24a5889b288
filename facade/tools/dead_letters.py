"""`sdp-facade dead-letters`: shows records that could not be used, and puts them back, each once."""

import base64
import getpass
import json
import math
import os
import socket
from collections import Counter, deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from facade.admin.redrive import (
    DeadLetter,
    DeadLetterOffset,
    Origin,
    Redrive,
    RedriveFate,
    RedrivePlan,
    Selection,
    Trial,
    plan,
    read_dead_letter,
    text_of,
)
from facade.admin.transaction_writer import KafkaTransactionWriter
from facade.kernel import manifest
from facade.kernel.bus.dead_letters import TOPIC, original
from facade.kernel.bus.kafka.admin import find_range
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.kafka.read_range import read_range
from facade.kernel.bus.port import Record
from facade.kernel.clock import NEVER, Clock, SystemClock, Time, as_duration, as_seconds
from facade.kernel.codec.decode import BatchDecoder
from facade.kernel.codec.json_schema import compile_message
from facade.kernel.config import Settings, load_settings
from facade.kernel.console import ERR, OUT, SINCE, AsJson, Since, table, wide
from facade.kernel.errors import BusError, ConfigError
from facade.kernel.icd.load import load
from facade.kernel.icd.model import Icd
from facade.kernel.outcome import USED, Outcome, Unused
from facade.kernel.printable import printable
from facade.sdp.durations import parse_duration

_MOST_SHOWN = 4096
"""Most bytes of a value that are shown."""
_LARGEST_STEP = 500
"""Most records of one transaction."""
_ROLE = "operator-tool"
"""Role of these commands in the ICD, which names their transactional id."""


Reasons = Annotated[list[str] | None, typer.Option("--reason", help="Only with this reason; repeatable.")]
Topics = Annotated[list[str] | None, typer.Option("--topic", help="Only of this topic; repeatable.")]
OffsetArgument = Annotated[str, typer.Argument(metavar="PARTITION:OFFSET", help="As `list` shows it, such as 0:117.")]


def list_dead_letters(
    since: Since = SINCE,
    reason: Reasons = None,
    topic: Topics = None,
    limit: Annotated[
        int, typer.Option(min=1, help="Number of dead letters to list, the newest ones; all are counted.")
    ] = 50,
    as_json: AsJson = False,
) -> None:
    """List dead letters by time, and count them by topic and reason.

    Example: sdp-facade dead-letters list --since 10m --topic ingest.heaps
    """
    clock, icd = SystemClock(), load()
    selection = _selection(icd, clock, since, reason, topic)
    listing = Listing(selection, limit)
    for record in _dead_letters(Connection(load_settings(), clock=clock), selection):
        listing.add(record)
    counts, redriven = listing.counts(), listing.redriven
    if as_json:
        shown = [{**described(one), "put back": one.origin in redriven} for one in listing.newest]
        typer.echo(json.dumps({"letters": shown, "counts": counts, "strange": listing.strange}, indent=2))
        return
    _print([line(one, redriven) for one in listing.newest], COLUMNS)
    _print([[*map(str, row.values())] for row in counts], [*counts[0]] if counts else ())
    if listing.strange:
        OUT.print(f"{listing.strange} records on {TOPIC} are no dead letters of the facade's")
    if not counts:
        typer.echo(f"no dead letters of the last {since}" + (" of this kind" if reason or topic else ""))


def show(dead_letter: OffsetArgument, as_json: AsJson = False) -> None:
    """Show one dead letter with all that is in it; control characters are shown as escapes.

    Example: sdp-facade dead-letters show 0:117
    """
    record = _one(Connection(load_settings()), _offset(dead_letter))
    if as_json:
        typer.echo(json.dumps(document(record), indent=2))
        return
    for name, raw in record.headers:
        OUT.print(Text(f"{printable(name)}: {text_of(raw)}"), soft_wrap=True)
    OUT.print(Text(f"key: {'none' if record.key is None else text_of(record.key)}"), soft_wrap=True)
    value = record.value
    if value is None:
        OUT.print("value: none")
        return
    more = f", of which the first {_MOST_SHOWN}; `dead-letters export` writes all" if len(value) > _MOST_SHOWN else ""
    OUT.print(f"value: {len(value)} bytes{more}", soft_wrap=True)
    OUT.print(Text(text_of(value[:_MOST_SHOWN])), soft_wrap=True)


def export(
    output: Annotated[Path, typer.Argument(help="File, or with --raw: folder. It must not exist.")],
    since: Since = SINCE,
    reason: Reasons = None,
    topic: Topics = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Write the bytes of each value to a file PARTITION-OFFSET.")
    ] = False,
) -> None:
    """Write dead letters to a file, a line of JSON each: where from, why, key, headers and value.

    UTF-8 is written as text, and other bytes as base64: `encoding` says which.

    Example: sdp-facade dead-letters export letters.jsonl --reason schema
    """
    clock, icd = SystemClock(), load()
    selection = _selection(icd, clock, since, reason, topic)
    dead_letters = _meant(_dead_letters(Connection(load_settings(), clock=clock), selection), selection)
    count = 0
    if raw:
        output.mkdir()
        for record in dead_letters:
            (output / f"{record.partition}-{record.offset}").write_bytes(record.value or b"")
            count += 1
    else:
        with output.open("x") as file:
            for record in dead_letters:
                file.write(json.dumps(document(record)) + "\n")
                count += 1
    typer.echo(f"{count} dead letters are in {output}")


def redrive(
    dead_letters: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PARTITION:OFFSET]...", help="Only these dead letters, as `list` shows them."),
    ] = None,
    since: Since = SINCE,
    reason: Reasons = None,
    topic: Topics = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Put them back. Default: only show what would be put back.")
    ] = False,
    again: Annotated[
        bool,
        typer.Option(
            "--again", help="Also dead letters that were put back before, came back since, or would fail again."
        ),
    ] = False,
    rate: Annotated[float, typer.Option(min=0.1, help="Most records per second.")] = 200.0,
    as_json: AsJson = False,
) -> None:
    """Put dead letters back on the topics that they came from.

    Without --yes: only say what would be put back. First remove the cause. Each record is read as its readers would
    read it now, with the settings of this command: one that would fail again is left out. A record that was put back
    names its dead letter in the header `redriven.from`. Each is put back once, also if this command is killed and begun
    again. Dead letters that arrive during the run are not touched.

    Example: sdp-facade dead-letters redrive --topic ingest.heaps --reason unknown-node
    """
    clock, icd, settings = SystemClock(), load(), load_settings()
    since = "" if dead_letters else since
    selection = _selection(icd, clock, since, reason, topic, dead_letters)
    connection = Connection(settings, clock=clock)
    # It ends an open transaction of an earlier run. Only later reads see all marks of that run.
    writer = KafkaTransactionWriter(connection, icd.roles[_ROLE].transactional_id) if yes else None
    ranges = find_range(connection, TOPIC)
    trial = trials_of(icd, settings, clock)
    made = plan(read_range(connection, TOPIC, ranges, whole=True), icd, selection, trial, again=again)
    done = 0
    if writer is not None:
        _show_plan(made, since, quiet=as_json)
        step = min(_LARGEST_STEP, math.ceil(rate))
        running = Redrive(
            read_range(connection, TOPIC, ranges), made.chosen, writer, clock, most=step, client=_client()
        )
        done = _run(running, made, rate, clock)
    if as_json:
        rows = [
            {"topic": name, "reason": why, "fate": fate.name.lower(), "letters": n, **_failure(made, name, why, fate)}
            for (name, why, fate), n in made.counts.most_common()
        ]
        missing = [*map(str, made.missing)]
        said = {"done": yes, "put back": done, "chosen": len(made.chosen), "missing": missing, "counts": rows}
        typer.echo(json.dumps(said, indent=2))
    elif yes:
        typer.echo(f"{done} records were put back")
    else:
        _show_plan(made, since, quiet=False)
        typer.echo(f"nothing was changed; {len(made.chosen)} records are put back with --yes")


def _run(running: Redrive, made: RedrivePlan, rate: float, clock: Clock) -> int:
    began, told = clock.monotonic(), clock.monotonic()
    try:
        while running.step():
            now = clock.monotonic()
            if now - told > 5.0:
                ERR.print(f"{running.done} of {len(made.chosen)} are back")
                told = now
            clock.sleep(max(0.0, running.done / rate - (now - began)))
    except BusError as error:
        left = len(made.chosen) - running.done
        raise BusError(
            f"{error}; {running.done} records were put back, {left} were not, or not for certain: the same command goes"
            " on where it ended, and puts none back twice"
        ) from error
    return running.done


def _show_plan(made: RedrivePlan, since: str, *, quiet: bool) -> None:
    if quiet:
        return
    rows = [
        [name, why, str(n), ": ".join((fate.value, *_failure(made, name, why, fate).values()))]
        for (name, why, fate), n in made.counts.most_common()
    ]
    _print(rows, ("topic", "reason", "letters", "what a redrive does"))
    if made.missing:
        typer.echo(f"no dead letters of this kind are at {', '.join(map(str, made.missing))}")
    elif not rows:
        typer.echo("no dead letters of this kind" + (f" of the last {since}" if since else ""))
    if made.blocked():
        why = "as they were put back before, or would fail again"
        typer.echo(f"{made.blocked()} dead letters are left out, {why}: --again puts them back")


def _failure(made: RedrivePlan, topic: str, reason: str, fate: RedriveFate) -> dict[str, str]:
    """Return the reason why the first dead letter of a row of the table would fail again."""
    why = made.failures.get((topic, reason))
    return {"failure": f"{why.path}: {why.detail}"} if why is not None and fate is RedriveFate.FAILS else {}


def trials_of(icd: Icd, settings: Settings, clock: Clock) -> Trial:
    """Return the trial of a record by the readers of its topic, with these settings."""
    flows: dict[str, Trial] = {}
    for flow in manifest.manifests():
        if flow.trials is not None:
            flows.update(manifest.load(flow.trials)(icd, settings))

    @cache
    def of_topic(name: str) -> Trial:
        topic = icd.topics[name]
        if (found := flows.get(name)) is not None or topic.message is None or topic.also:
            return found or (lambda _: USED)
        decode = BatchDecoder(compile_message(topic.message, icd.messages[topic.message])).decode_one
        return lambda record: made if isinstance(made := decode(record.value), Unused) else USED

    def read(record: Record) -> Outcome:
        return of_topic(record.topic)(replace(record, timestamp_us=clock.now_us()))

    return read


def _selection(
    icd: Icd,
    clock: Clock,
    since: str,
    reasons: list[str] | None,
    topics: list[str] | None,
    offsets: list[str] | None = None,
) -> Selection:
    if unknown := [name for name in topics or () if name not in icd.topics]:
        raise ConfigError(f"--topic: expected a topic of the interface, without the prefix, got {unknown[0]!r:.100}")
    since_us = clock.now_us() - as_duration(parse_duration(since, "--since")) if since else NEVER
    chosen = [*map(_offset, offsets or ())]
    return Selection(topics=topics or (), reasons=reasons or (), since_us=since_us, offsets=chosen)


def _offset(text: str) -> DeadLetterOffset:
    partition, _, offset = text.partition(":")
    if not (partition.isdecimal() and offset.isdecimal() and len(text) < 30):
        raise ConfigError(f"expected a dead letter as PARTITION:OFFSET, such as 0:117, got {text!r:.100}")
    return DeadLetterOffset(int(partition), int(offset))


def _dead_letters(connection: Connection, selection: Selection) -> Iterator[Record]:
    ranges = find_range(connection, TOPIC, since=selection.since_us)
    return read_range(connection, TOPIC, ranges)


def _meant(records: Iterator[Record], selection: Selection) -> Iterator[Record]:
    for record in records:
        dead_letter = read_dead_letter(record)
        if dead_letter is not None and not dead_letter.is_mark and selection.has(dead_letter):
            yield record


def _one(connection: Connection, at: DeadLetterOffset) -> Record:
    partition, offset = at
    begin, end = find_range(connection, TOPIC).get(partition, (0, 0))
    if begin <= offset < end:
        for record in read_range(connection, TOPIC, {partition: (offset, offset + 1)}):
            return record
        why = "there is the mark of a transaction; `sdp-facade dead-letters list` shows which ones are letters"
    else:
        why = f"partition {partition} has {f'offsets {begin} to {end - 1}' if begin < end else 'none'}"
    raise ConfigError(f"no dead letter {at}: {why}")


def _print(rows: list[list[str]], columns: Sequence[str]) -> None:
    if rows:
        wide().print(table(columns, rows, whole=COLUMNS[:2]))


class Listing:
    """Dead letters of a kind: a count of all, and the newest ones.

    Parameters
    ----------
    limit
        Most dead letters to keep.
    """

    def __init__(self, selection: Selection, limit: int) -> None:
        self._selection = selection
        self.newest: deque[DeadLetter] = deque(maxlen=limit)
        self.strange = 0
        """Records that are not the facade's dead letters."""
        self.redriven: set[Origin] = set()
        self._dead_letters: Counter[tuple[str, str]] = Counter()
        self._reasons: dict[Origin, str] = {}

    def add(self, record: Record) -> None:
        """Add a record of `dead-letters`."""
        dead_letter = read_dead_letter(record)
        if dead_letter is None:
            self.strange += 1
        elif dead_letter.is_mark:
            self.redriven.add(dead_letter.origin)
        elif self._selection.has(dead_letter):
            self.newest.append(dead_letter)
            self._dead_letters[dead_letter.origin.topic, dead_letter.reason] += 1
            self._reasons[dead_letter.origin] = dead_letter.reason

    def counts(self) -> list[dict[str, str | int]]:
        """Return counts by topic and reason, the most frequent first: dead letters, their records, and those put back.

        There are fewer records than dead letters if several device servers read a topic, as each of them writes one, or
        if one was killed before it had stored its position, and wrote some again.
        """
        records = Counter((origin.topic, reason) for origin, reason in self._reasons.items())
        back = Counter((origin.topic, reason) for origin, reason in self._reasons.items() if origin in self.redriven)
        return [
            {"topic": kind[0], "reason": kind[1], "letters": n, "records": records[kind], "put back": back[kind]}
            for kind, n in self._dead_letters.most_common()
        ]


def _time(time: Time) -> str:
    try:
        return datetime.fromtimestamp(as_seconds(time), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    except (OverflowError, ValueError, OSError):
        return "-"


COLUMNS = ("time (UTC)", "letter", "record", "reason", "path", "detail", "by")


def line(dead_letter: DeadLetter, redriven: Collection[Origin]) -> list[str]:
    """Return a row of the table with `COLUMNS`."""
    reason = f"{dead_letter.reason} (put back)" if dead_letter.origin in redriven else dead_letter.reason
    time = _time(dead_letter.written_us)[:19].replace("T", " ")
    said = dead_letter.path, dead_letter.detail[:80], dead_letter.by
    return [time, str(dead_letter.at), str(dead_letter.origin), reason, *said]


def described(dead_letter: DeadLetter) -> dict[str, Any]:
    """Return a dead letter as a document, without its record."""
    return {
        "letter": str(dead_letter.at),
        "time": _time(dead_letter.written_us),
        **{name: getattr(dead_letter.origin, name) for name in ("topic", "partition", "offset")},
        **{name: getattr(dead_letter, name) for name in ("reason", "path", "detail", "by", "size")},
    }


def document(record: Record) -> dict[str, Any]:
    """Return a dead letter as a document with its record; bytes as text if they are UTF-8, otherwise as base64."""
    dead_letter, whole = read_dead_letter(record), original(record)
    said = (
        described(dead_letter)
        if dead_letter is not None
        else {"letter": str(DeadLetterOffset(record.partition, record.offset))}
    )
    headers = [{"name": name, **(_bytes(raw) or {})} for name, raw in whole.headers]
    return {**said, "key": _bytes(whole.key), "headers": headers, "value": _bytes(whole.value)}


def _bytes(raw: bytes | None) -> dict[str, str] | None:
    if raw is None:
        return None
    try:
        return {"encoding": "utf-8", "data": raw.decode()}
    except UnicodeDecodeError:
        return {"encoding": "base64", "data": base64.b64encode(raw).decode()}


def _client() -> str:
    """Return user, host and process of this command."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no entry
        user = f"uid {os.getuid()}"
    return f"{user} at {socket.gethostname()}, process {os.getpid()}"

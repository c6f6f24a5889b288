"""`sdp-facade mirror`: the rules for the Tango attributes that are mirrored to the bus."""

import getpass
from collections.abc import Sequence
from typing import Annotated

import msgspec
import typer

from facade.flows.mirror.choice import PERIOD
from facade.flows.mirror.messages import RULES, MirrorRule, decode_rule, is_name, rule_record
from facade.kernel.bus.kafka.bus import KafkaBus
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.kafka.opening import CONFIRMED_WITHIN
from facade.kernel.bus.port import Record
from facade.kernel.clock import SystemClock
from facade.kernel.config import load_settings
from facade.kernel.console import ERR, OUT, table, wide
from facade.kernel.errors import ConfigError

_WIDE = 500

RuleName = Annotated[str, typer.Argument(metavar="RULE", help="Name of the rule.")]
Patterns = Annotated[
    list[str],
    typer.Argument(
        help="Attributes, domain/family/member/attribute: * stands for any characters but a slash, {receptor} for each "
        "receptor whose resources a subarray holds."
    ),
]
Period = Annotated[
    float | None,
    typer.Option(min=0.1, max=3600.0, help="Time between two reads of attributes without events, in seconds."),
]
Comment = Annotated[str, typer.Option(help="Why.")]


def list_rules() -> None:
    """Show the rules.

    Example: sdp-facade mirror list
    """
    rows = [
        (name, f"{rule.period or PERIOD:g}", rule.origin, rule.comment, pattern)
        for name, rule in sorted(_rules(_bus()).items())
        for pattern in rule.patterns
    ]
    titles = ("rule", "period [s]", "origin", "comment", "pattern")
    wide(_WIDE).print(table(titles, rows, whole=titles))


def add(rule: RuleName, patterns: Patterns, period: Period = None, comment: Comment = "") -> None:
    """Add patterns to a rule, which is made if there is none: their attributes are mirrored.

    Example: sdp-facade mirror add pointing 'mid-dish/dish-manager/{receptor}/achievedPointing'
    """
    bus = _bus()
    known = _rules(bus).get(rule)
    if known is not None:
        patterns = [*known.patterns, *patterns]
        period, comment = known.period if period is None else period, comment or known.comment
    _write(bus, rule, patterns, period, comment)


def replace(rule: RuleName, patterns: Patterns, period: Period = None, comment: Comment = "") -> None:
    """Replace the patterns of a rule: it then mirrors these attributes only.

    Example: sdp-facade mirror replace weather 'mid-wms/weather/*/*' --period 5
    """
    _write(_bus(), rule, patterns, period, comment)


def remove(
    rule: RuleName,
    patterns: Annotated[list[str] | None, typer.Argument(help="Only these patterns of it. Default: all.")] = None,
) -> None:
    """Remove a rule, or some of its patterns: their attributes are no longer mirrored.

    Example: sdp-facade mirror remove weather
    """
    bus = _bus()
    known = _rules(bus)
    if rule not in known:
        raise ConfigError(f"rule: expected one of {', '.join(sorted(known)) or 'none'}, got {rule!r:.100}")
    there = known[rule].patterns
    if odd := [one for one in patterns or () if one not in there]:
        raise ConfigError(f"patterns: expected some of {', '.join(there)}, got {odd[0]!r:.400}")
    left = [one for one in there if patterns and one not in patterns]
    if left:
        _write(bus, rule, left, known[rule].period, known[rule].comment)
        return
    bus.writer().send_durably(Record(topic=RULES, key=rule.encode(), value=None), CONFIRMED_WITHIN)
    OUT.print(f"{rule}: removed", markup=False)


def _bus() -> KafkaBus:
    return KafkaBus(Connection(load_settings()), client="mirror-rules")


def _rules(bus: KafkaBus) -> dict[str, MirrorRule]:
    found: dict[str, MirrorRule] = {}
    for record in bus.read_all(RULES):
        rule = decode_rule(record.value)
        if isinstance(rule, MirrorRule):
            found[rule.rule] = rule
        elif record.value is None and record.key is not None:
            found.pop(record.key.decode("utf-8", "replace"), None)
        else:
            ERR.print(f"a rule cannot be read: {rule}", markup=False)
    return found


def _write(bus: KafkaBus, name: str, patterns: Sequence[str], period: float | None, comment: str) -> None:
    for pattern in patterns:
        if not is_name(pattern):
            raise ConfigError(f"pattern: expected domain/family/member/attribute, got {pattern!r:.400}")
    made = MirrorRule(
        rule=name,
        patterns=list(dict.fromkeys(patterns)),
        period=period,
        comment=comment,
        time=SystemClock().now_us(),
        origin=_user(),
    )
    record = rule_record(made)
    try:
        msgspec.json.decode(record.value or b"", type=MirrorRule)
    except msgspec.ValidationError as error:
        raise ConfigError(f"rule {name!r:.100}: {error}") from error
    bus.writer().send_durably(record, CONFIRMED_WITHIN)
    OUT.print(f"{name}: {len(made.patterns)} patterns", markup=False)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may have no name for its user
        return "unknown"

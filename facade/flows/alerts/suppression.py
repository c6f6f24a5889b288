"""Suppression by design (IEC 62682): the alarms that explain others, by the ICD's conditions and locations.

A condition names those that explain it, each with a location: `rackSilent@rack` is an alarm of the rack that contains
the source; without a location the alarm may be anywhere. `serverGone@stream` is an alarm of a process that reads the
stream: the ICD says for each topic which roles read it. A condition with `gathers` is raised by the facade itself, when
that number of simultaneous alarms needs an explanation. No condition has code of its own.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from string import Formatter
from types import MappingProxyType

from facade.flows.alerts.messages import Alarm, AlarmKey
from facade.kernel.icd.model import STREAM, Condition, Icd, Location, instance_role
from facade.kernel.icd.topic_model import slot_name
from facade.kernel.instances import pattern_of
from facade.kernel.manifest import manifests
from facade.kernel.runtime.flow import Fault, FaultKey
from facade.kernel.runtime.health_issues import ORIGIN
from facade.kernel.severities import SEVERITIES
from facade.sdp import alarm_states as states

ANYWHERE = "all"
"""Source of an alarm that gathers others wherever they are."""
ANY = "*"
"""Any source of a cause."""
_MOST_SOURCES = 20_000
"""Sources with cached locations."""
_MOST_NAMED = 8
"""Sources and hosts that the text of a gathering alarm names."""


class Suppression:
    """Relations between alarms and their explanations.

    Parameters
    ----------
    locations
        Locations of sources, by the ICD.
    rack_size
        Nodes of a rack.
    streams
        Alarms about a stream and its readers, see `alarms_by_stream`.
    """

    def __init__(
        self,
        conditions: Mapping[str, Condition],
        locations: Mapping[str, Location],
        rack_size: int,
        streams: Mapping[str, Collection[AlarmKey]] = MappingProxyType({}),
    ) -> None:
        self._conditions, self._locations, self._rack_size = conditions, locations, rack_size
        self._streams = streams
        self.suppressors = {name: condition.suppressors for name, condition in conditions.items()}
        """Conditions that may explain each condition, with the location; empty: anywhere."""
        self.explained: dict[str, list[str]] = {}
        """Conditions by each one that may explain them."""
        for name, others in self.suppressors.items():
            for other, _ in others:
                self.explained.setdefault(other, []).append(name)
        self._patterns = [
            (re.compile(pattern_of(source)), source, name)
            for name, location in locations.items()
            for source in location.sources
        ]
        self.places = lru_cache(_MOST_SOURCES)(self._find_places)
        """Returns the places that contain a source, the smallest first, by their locations."""
        # Inner ones first: the outer ones depend on them.
        self._gathering = sorted(
            (name for name, condition in conditions.items() if condition.gathers), key=self._depth, reverse=True
        )

    def causes(self, key: AlarmKey) -> Iterator[AlarmKey]:
        """Return the possible causes of an alarm, in the order of the ICD.

        A source that ends with ``*`` means those that begin so; see `meant`.
        """
        condition, source = key
        for cause, location in self.suppressors.get(condition, ()):
            if not location:
                yield cause, ANY
            elif location == STREAM:
                found = self._streams.get(source) or self._streams.get(source.partition("/")[0], ())
                yield from (one for one in found if one[0] == cause)
            elif place := self.places(source).get(location):
                yield cause, place

    def cause(self, key: AlarmKey, alarms: Mapping[str, Mapping[str, Alarm]]) -> AlarmKey | None:
        """Return the first of the alarms, by condition and source, that explains one; None: none does."""
        for condition, source in self.causes(key):
            known = alarms.get(condition, {})
            for name in meant(source, known):
                if (one := known.get(name)) is not None and explains(one):
                    assert one.key != key, f"{key} would hide itself, and so be seen by nobody"
                    return one.key
        return None

    def gathered(self, found: Mapping[FaultKey, Fault]) -> dict[FaultKey, Fault]:
        """Return found faults with the faults that gather them, the causes first."""
        whole = dict(found)
        for name in self._gathering:
            whole = {**dict(self._gather(name, whole)), **whole}
        return whole

    def gathers(self, condition: str) -> Sequence[str]:
        """Return the conditions gathered by a condition."""
        return self.explained.get(condition, ()) if condition in self._gathering else ()

    def _gather(self, name: str, whole: Mapping[FaultKey, Fault]) -> Iterator[tuple[FaultKey, Fault]]:
        places: dict[str, list[FaultKey]] = {}
        for key in whole:
            for cause, place in self.causes(key):
                if cause == name:
                    places.setdefault(ANYWHERE if place == ANY else place, []).append(key)
        present: dict[str, set[str]] = {}
        for condition, source in whole:
            present.setdefault(condition, set()).add(source)
        for place, keys in places.items():
            alone = [
                key
                for key in keys
                if not any(meant(source, present.get(cause, ())) for cause, source in self.causes(key))
            ]
            if len(alone) < self._conditions[name].gathers:
                continue
            counts = Counter(condition for condition, _ in keys)
            counted = ", ".join(f"{count} {condition}" for condition, count in counts.most_common())
            named = ", ".join(source for _, source in alone[:_MOST_NAMED]) + ", ..." * (len(alone) > _MOST_NAMED)
            worst = max((whole[key].severity for key in keys), key=SEVERITIES.index)
            hosts = Counter(whole[key].host for key in keys if whole[key].host).most_common(_MOST_NAMED)
            where = f"; hosts: {', '.join(f'{host} ({count})' for host, count in hosts)}" if hosts else ""
            yield (name, place), Fault(f"{counted}: {named}{where}", worst, values={"alarms": len(keys)})

    def _depth(self, name: str) -> int:
        """Return the number of nested gathering conditions that may explain one."""
        return max((1 + self._depth(one) for one, _ in self.suppressors.get(name, ())), default=0)

    def _find_places(self, source: str) -> Mapping[str, str]:
        """Return the places that contain a source, the smallest first, by their locations."""
        for pattern, template, name in self._patterns:
            if (match := pattern.fullmatch(source)) is None:
                continue
            number, family = int(match[1]) if match.groups() else 0, _family(template)
            found: dict[str, str] = {}
            while name:
                canonical = self._locations[name].sources[0]
                if _family(canonical) == "rack" and family == "node":
                    number //= self._rack_size
                family = _family(canonical)
                found[name] = canonical.format(**{family: number})
                name = self._locations[name].within
            return found
        return {}


def explains(alarm: Alarm) -> bool:
    """Return whether operators see an active alarm: one that they have hidden must not hide others."""
    return alarm.state in states.ACTIVE and not (alarm.out_of_service or alarm.shelved_until)


def suppression_of(icd: Icd, rack_size: int) -> Suppression:
    """Return the relations that the ICD names, for a deployment whose racks have `rack_size` nodes."""
    return Suppression(icd.conditions, icd.locations, rack_size, alarms_by_stream(icd))


def meant(source: str, known: Collection[str]) -> list[str]:
    """Return those of the known sources that the source of a cause means."""
    if source.endswith(ANY):
        return [one for one in list(known) if one.startswith(source[:-1])]
    return [source] if source in known else []


def alarms_by_stream(icd: Icd) -> dict[str, list[AlarmKey]]:
    """Return the alarms about each stream and its readers, by the source of an alarm about the stream or its groups.

    The nodes of `ingest.heaps` are sources that begin with ``ingest/``.
    """
    servers = {instance_role(one.instance): one.instance.partition("{") for one in icd.classes.values()}
    readers = {
        role: ("serverGone", f"{ORIGIN}/{begin}{ANY * bool(rest)}") for role, (begin, rest, _) in servers.items()
    }
    workers = {worker.name: worker.gone for one in manifests() for worker in one.workers}
    found: dict[str, list[AlarmKey]] = {}
    for name, topic in icd.topics.items():
        source = f"{ORIGIN}/{name}"
        # A worker also reads its own results, to end a transaction of its own: its lag does not matter there.
        found[source] = [readers[role] for role in topic.readers if role in readers]
        for role in topic.readers:
            if role in workers and role not in topic.writers:
                found[source] += [(workers[role], ORIGIN), ("workerSilent", f"{ORIGIN}/{slot_name(role, ANY)}")]
        if topic.window is not None and topic.window.all_expected:
            found.setdefault(name.partition(".")[0], []).append(("streamLagging", source))
    return found


def _family(template: str) -> str:
    return next((name for _, name, _, _ in Formatter().parse(template) if name is not None), "")

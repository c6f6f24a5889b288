"""What the operator's page asks of one deployment beside events: its description, single answers, and actions."""

import json
import math
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

import msgspec

from facade.flows.commands.outcomes import HELD
from facade.flows.telemetry.plan import FIGURES
from facade.kernel.clock import Clock, as_time, utc_seconds
from facade.kernel.errors import ConfigError, FacadeError, InfraError
from facade.kernel.icd.fields import Schema
from facade.kernel.icd.model import Attribute, CommandDefinition, DeviceClass, Icd
from facade.kernel.icd.units import unit_of
from facade.kernel.manifest import Manifest, manifests
from facade.kernel.numbers import json_value
from sdp_facade_clients.alarm_choice import ACTIONS, request, urgency
from sdp_facade_clients.ask import AskedDevice
from sdp_facade_clients.status import judge, questions, see
from sdp_facade_clients.web.doors import Person
from sdp_facade_clients.web.following import is_followed

ALERTS: Final = "SdpAlerts"
MASTER: Final = "SdpMaster"
NODE_FIGURES: Final = "nodeFigures"
LONGEST_SHELF: Final = 7 * 86400.0
_DECISIONS: Final = {"approve": "ApproveCommand", "withdraw": "WithdrawCommand"}
_MOST_COMMANDS: Final = 200
_MOST_LETTERS: Final = 200
_LONGEST_RUN: Final = 30.0
"""Of a sub-command that reads the bus [s]."""
_SPANS: Final = ("10m", "1h", "12h", "")
"""Ages of dead letters that the page offers; the last one is any age. Any number of people ask as few questions."""
_ALL: Final = "365d"
"""Longer than any topic keeps dead letters."""
_ACT_SPANS: Final = ("10m", "1h", "12h", "7d")
"""The same for what people did."""
_MOST_ACTS: Final = 2000
_LETTER = re.compile(r"\d{1,9}:\d{1,18}")
_OF_ATTRIBUTE: Final = ("label", "type", "description", "format", "enum", "length", "height", "expert", "limits")
_OF_COMMAND: Final = ("description", "argument", "state", "obs_state", "overtakes")
_OF_CONDITION: Final = ("label", "response", "description", "priority", "causes", "check", "ends")
"""Fields of the interface that the page needs as they are."""
_Known = TypeVar("_Known")


class Site:
    """One deployment, as its Tango database and the ICD describe it."""

    def __init__(
        self,
        tango_host: str,
        icd: Icd,
        devices: Callable[[], Mapping[str, str]],
        clock: Clock,
        *,
        instances: Callable[[], Mapping[str, str]] = dict,
        silent: Callable[[], Mapping[str, float]] = dict,
        banner: str = "",
    ) -> None:
        self._tango_host, self._icd, self._devices, self._clock = tango_host, icd, devices, clock
        self._instances, self._silent, self._banner = instances, silent, banner

    def description(self) -> dict[str, Any]:
        """Return all that the page needs to know of the deployment and the interface."""
        return {
            "tango_host": self._tango_host,
            "banner": self._banner,
            "icd": self._icd.version,
            "devices": dict(self._devices()),
            "instances": dict(self._instances()),
            "classes": {name: self._class(kind) for name, kind in self._icd.classes.items()},
            "enums": self._icd.enums,
            "flows": {one.name: self._flow(one) for one in manifests()},
            "actions": {name: sorted(one.fits) for name, one in ACTIONS.items()},
            "conditions": {name: _fields(one, _OF_CONDITION) for name, one in self._icd.conditions.items()},
        }

    def _flow(self, flow: Manifest) -> dict[str, Any]:
        page = flow.page
        own = {
            name: [one.name for one in self._icd.classes[name].attributes if not one.expert]
            for name in flow.device_classes
        }
        return {
            "summary": flow.summary,
            "classes": list(flow.device_classes),
            "page": page
            and {"title": page.title, "attributes": page.attributes or own}
            | {"over": page.over, "waterfalls": page.waterfalls, "each": page.each},
        }

    def _class(self, kind: DeviceClass) -> dict[str, Any]:
        return {
            "description": kind.description,
            "family": kind.family,
            "complains": kind.complains,
            "attributes": {one.name: self._attribute(one) for one in kind.attributes},
            "commands": {one.name: _fields(one, _OF_COMMAND) for one in kind.commands},
        }

    def _attribute(self, entry: Attribute) -> dict[str, Any]:
        return _fields(entry, _OF_ATTRIBUTE) | {
            "unit": unit_of(self._icd, entry),
            "followed": is_followed(entry),
            "stream": entry.account.stream if entry.account else None,
            "figure": entry.account.figure if entry.account else None,
        }

    def kinds(self) -> Mapping[str, str]:
        """Return the class of each device of the deployment."""
        return self._devices()

    def labels(self, enum: str) -> Sequence[str]:
        """Return the labels of an enumeration, by number."""
        return self._icd.enums[enum]

    def schemas(self, family: str) -> Mapping[str, Schema]:
        """Return the JSON Schemas of an argument by version, the oldest first."""
        return _known(self._icd.arguments, family, "family")

    def require(self, device: str, attribute: str) -> None:
        """Raise `ConfigError` unless the deployment has a device with this attribute."""
        _known(self._attributes(device), attribute, "attribute")

    # Each of the following asks a device, and may wait for it for up to 3 s.

    @property
    def alerts_device(self) -> str:
        """Name of the device with the alarms."""
        return str(self._icd.classes[ALERTS].device)

    def alarms(self) -> list[dict[str, Any]]:
        """Return all alarms that are not at rest, the most urgent first."""
        return sorted(json.loads(self._only(ALERTS).command("GetAlarms")), key=urgency, reverse=True)

    def judgement(self) -> dict[str, Any]:
        """Return whether all is well, with instructions, as `sdp-facade status` does."""
        silent, instances, alarms = self._silent(), self._instances(), None

        def read(device: str, names: Sequence[str]) -> dict[str, Any] | None:
            if device not in silent and device in self._devices():
                with suppress(FacadeError):
                    found = self._asked(device).read(*names)
                    return found | ({"State": str(found["State"])} if "State" in found else {})
            return None

        if self.alerts_device not in silent:
            with suppress(FacadeError):
                alarms = json.loads(self._only(ALERTS).command("GetAlarms"))
        away = {
            instances[one]: f"no answer since {utc_seconds(as_time(at))}"
            for one, at in silent.items()
            if one in instances
        }
        return self._judged(read, alarms, lambda one: away.get(one, ""))

    def judged_of(self, values: Mapping[str, Mapping[str, list[Any]]], alarms: Any) -> dict[str, Any]:
        """Return whether all was well, by the values of a frame and the alarms, both from an archive."""
        labels = self._icd.enums["HealthState"]

        def read(device: str, names: Sequence[str]) -> dict[str, Any] | None:
            if device not in values:
                return None
            found = {one: values[device].get(one, [None, "INVALID"]) for one in names}
            told = {one: None if quality == "INVALID" else value for one, (value, quality, *_) in found.items()}
            if told.get("healthState") in labels:  # the history has labels
                told["healthState"] = labels.index(told["healthState"])
            return told

        judged = self._judged(read, alarms, lambda one: "")
        # An instruction holds for the present only.
        return judged | {"findings": [one | {"do": ""} for one in judged["findings"]]}

    def _judged(
        self, read: Callable[[str, Sequence[str]], dict[str, Any] | None], alarms: Any, away: Callable[[str], str]
    ) -> dict[str, Any]:
        answers = {name: read(*one) for name, one in questions().items()}
        registered, labels = sorted({*self._instances().values()}), self._icd.enums["HealthState"]
        judged = judge(see(answers, alarms, registered, away, labels), self._icd.conditions)
        findings = [one._asdict() for one in judged.findings]
        return {"state": judged.state, "idle": judged.is_idle, "findings": findings}

    def alarm_history(self, condition: str, source: str) -> list[dict[str, Any]]:
        """Return the remembered entries of one alarm, the newest first."""
        asked = {"condition": condition, "source": source, "most": 200}
        return json.loads(self._only(ALERTS).command("GetAlertHistory", json.dumps(asked)))

    def commands(self, device: str) -> list[dict[str, Any]]:
        """Return the newest commands of a device with their outcomes, the newest first."""
        return json.loads(self._asked(device).command("GetCommandHistory", _MOST_COMMANDS))

    def waiting(self, device: str) -> list[dict[str, Any]]:
        """Return the commands of a device that wait for a second person with their arguments, the newest first."""
        asked = self._asked(device)
        known = [one["id"] for one in self.commands(device) if one["status"] == HELD]
        return [one for id in known if (one := json.loads(asked.command("GetCommand", id)))["status"] == HELD]

    def read(self, device: str, attribute: str) -> dict[str, Any]:
        """Read an attribute that sends no events, such as a table of gains."""
        self.require(device, attribute)
        found = self._asked(device).event(attribute)
        return {"value": json_value(found.value), "quality": found.quality.value, "time": found.time}

    def nodes(self) -> dict[str, list[float | None]]:
        """Return the figures of all ingest nodes, each by the node's number: one read for any number of nodes."""
        rows = self._only(MASTER).read(NODE_FIGURES)[NODE_FIGURES]
        known = {} if rows is None else dict(zip((*FIGURES, "silence"), rows, strict=False))
        return {name: [one if math.isfinite(one) else None for one in row] for name, row in known.items()}

    def acts(self, since: str) -> Any:
        """Return what people did and were refused, the newest first, as `sdp-facade audit` lists it."""
        if since not in _ACT_SPANS:
            raise ConfigError(f"since: expected one of {', '.join(_ACT_SPANS)}, got {since!r:.50}")
        return _sdp_facade("audit", "--since", since, "--limit", str(_MOST_ACTS))[::-1]

    def dead_letters(self, since: str) -> Any:
        """Return dead letters by time, and their counts by topic and reason, as `sdp-facade dead-letters list` does."""
        if since not in _SPANS:
            raise ConfigError(f"since: expected one of {', '.join(filter(None, _SPANS))} or none, got {since!r:.50}")
        return _sdp_facade("dead-letters", "list", "--limit", str(_MOST_LETTERS), "--since", since or _ALL)

    def dead_letter(self, letter: str) -> Any:
        """Return one dead letter with all that is in it; control characters are escapes."""
        return _sdp_facade("dead-letters", "show", *_letters([letter]))

    def redrive(self, letters: list[str], *, put_back: bool) -> Any:
        """Put dead letters back, or say which would be put back now, and why others would not."""
        return _sdp_facade("dead-letters", "redrive", *(("--yes",) if put_back else ()), *_letters(letters))

    def argument(self, device: str, name: str) -> str | None:
        """Return the family of the schemas of a command's argument; None: it has no argument."""
        return self._entry(device, name).argument

    def command(self, person: Person, device: str, name: str, argument: str) -> str:
        """Give a command in the name of a person, and return its id; the device checks the argument."""
        family = self.argument(device, name)
        return self._asked(device).give(name, argument if family is not None else None, person.name)

    def decide(self, person: Person, device: str, decision: str, id: str) -> None:
        """Approve or withdraw a command that waits for a second person; errors as of `command`."""
        name = _known(_DECISIONS, decision, "decision")
        self._asked(device).command(name, json.dumps({"id": id, "operator": person.name}))

    def alarm_action(self, person: Person, name: str, asked: Mapping[str, Any]) -> str:
        """Act about one alarm in the name of a person, and return the id of the action."""
        action = _known(ACTIONS, name, "action")
        comment = str(asked.get("comment") or "")
        if action.why and not comment:
            raise ConfigError("comment: expected a reason, got none; it is kept with the alarm")
        duration = float(asked.get("duration") or 0)
        if name == "shelve" and not 0 < duration <= LONGEST_SHELF:
            raise ConfigError(f"duration: expected up to {LONGEST_SHELF:.0f} s, got {duration:g}")
        alarm = {key: asked.get(key) for key in ("condition", "source", "occurrence")}
        content = request(alarm, action, user=person.name, comment=comment, duration=duration)
        return str(self._only(ALERTS).command(action.command, json.dumps(content)))

    def admin_mode(self, person: Person, device: str, label: str) -> None:
        """Set the administrative mode of a device in the name of a person; errors as of `command`."""
        self.require(device, "adminMode")
        self._asked(device).set_mode(label, person.name)

    def _kind(self, device: str) -> DeviceClass:
        return self._icd.classes[_known(self._devices(), device, "device")]

    def _attributes(self, device: str) -> dict[str, Attribute]:
        return {one.name: one for one in self._kind(device).attributes}

    def _entry(self, device: str, name: str) -> CommandDefinition:
        return _known({one.name: one for one in self._kind(device).commands}, name, "command")

    def _asked(self, device: str) -> AskedDevice:
        return AskedDevice(self._tango_host, device, self._kind(device).instance)

    def _only(self, kind: str) -> AskedDevice:
        device = next((name for name, one in self._devices().items() if one == kind), None)
        if device is None:
            raise ConfigError(f"the Tango database {self._tango_host} has no device of the class {kind}")
        return self._asked(device)


def _fields(entry: object, names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(entry, name) for name in names}


def _letters(given: Sequence[str]) -> Sequence[str]:
    """Return positions of dead letters; without any, the sub-command would take all."""
    if not given or not all(_LETTER.fullmatch(one) for one in given):
        raise ConfigError("letters: expected PARTITION:OFFSET of at least one dead letter")
    return given


def _sdp_facade(*arguments: str) -> Any:
    """Run a sub-command that reads the bus, in a process of its own: the page itself knows Tango only."""
    command = [sys.executable, "-m", "facade.kernel.cli", *arguments, "--json"]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_LONGEST_RUN, check=False)
    except subprocess.TimeoutExpired:
        raise InfraError(f"sdp-facade {' '.join(arguments[:2])} did not end within {_LONGEST_RUN:g} s") from None
    if ended.returncode and not ended.stdout:
        raise InfraError(ended.stderr.strip()[-1000:])
    return msgspec.json.decode(ended.stdout)


def _known(found: Mapping[str, _Known], name: str, what: str) -> _Known:
    if name not in found:
        raise ConfigError(f"{what}: expected one of {', '.join(sorted(found))[:500]}, got {name!r:.100}")
    return found[name]

"""Replaces templates of the interface by the attributes that they represent."""

import re
from collections.abc import Iterator

from msgspec.structs import replace

from facade.kernel.icd.model import AccountSource, Attribute, DeviceClass, Icd

_ALARM_STATE = "AlarmState"
_RANGE = re.compile(r"([A-Z]+)(\d+)\.\.\1(\d+)")


def expand(icd: Icd) -> Icd:
    """Return an interface without templates.

    The attributes of a class come first, then those of accounts by topic, then those of alarm conditions.
    """
    classes = {
        name: replace(one, attributes=(*_own(one), *_of_accounts(icd, one), *_of_conditions(icd, one)), accounts={})
        for name, one in icd.classes.items()
    }
    return replace(icd, classes=classes)


def account_attribute(stream: str, figure: str) -> str:
    """Return the name of the attribute with a figure of a stream's account, such as ``ingestLag``."""
    first, *rest = re.split(r"[._-]", f"{stream}-{figure}")
    return first + "".join(word[:1].upper() + word[1:] for word in rest)


def _own(device_class: DeviceClass) -> Iterator[Attribute]:
    for entry in device_class.attributes:
        if not entry.each:
            yield entry
        for name in (name for text in entry.each for name in names_of(text)):
            texts = {key: getattr(entry, key).replace("{}", name) for key in ("name", "label", "description")}
            yield replace(entry, each=(), **texts)


def names_of(text: str) -> list[str]:
    """Return the names of a range such as ``SKA001..SKA133``; any other text is one name."""
    found = _RANGE.fullmatch(text)
    if found is None:
        return [text]
    prefix, first, last = found.groups()
    return [f"{prefix}{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]


def _of_accounts(icd: Icd, device_class: DeviceClass) -> Iterator[Attribute]:
    for name, topic in icd.topics.items():
        for figure, template in device_class.accounts.items():
            # A lag in records implies a lag in seconds.
            if topic.account is None or figure.removesuffix("_time") not in topic.account.figures:
                continue
            what = template.description.replace("{suppressed}", topic.account.suppressed)
            yield Attribute(
                name=account_attribute(name, figure),
                type="DevDouble" if figure in ("rate", "lag_time") else "DevLong64",
                label=f"{name}: {template.label}",
                description=f"{what}; stream {name} ({topic.account.about}).",
                account=AccountSource(stream=name, figure=figure),
                format=template.format,
                stale_after=template.stale_after,
                expert=template.expert,
                limits=topic.account.lag if figure == "lag" else template.limits,
            )


def _of_conditions(icd: Icd, device_class: DeviceClass) -> Iterator[Attribute]:
    for name, one in icd.conditions.items() if device_class.conditions else ():
        yield Attribute(name=name, type="DevEnum", enum=_ALARM_STATE, label=one.label, description=one.description)

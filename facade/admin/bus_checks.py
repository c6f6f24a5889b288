"""Checks of `sdp-facade bus check`: judge the state of the bus by the answers of the brokers."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from msgspec.structs import replace

from facade.admin.cluster import GroupState
from facade.kernel.clock import Time, as_seconds
from facade.kernel.config import Settings
from facade.kernel.findings import DEGRADED, FAILED, NOTE, UNKNOWN, Finding
from facade.kernel.icd.model import Icd
from facade.kernel.printable import listed

Needs = Mapping[str, frozenset[str]]
_GRAVE: Final = {"cleanup.policy", "message.timestamp.type", "unclean.leader.election.enable", "partitions"}
"""Settings that lose confirmed records, or have them judged wrongly."""
_OLD_AFTER = 10.0
"""A record that waits longer for its worker is late [s]."""
_NEAR_THE_END = 0.5
"""Share of the retention after which records that wait are about to be lost."""
_WRONG_CLOCK, _USELESS_CLOCK = 1.0, 5.0
"""Clock differences to the broker: reported from the first; from the second, data are refused as ahead or late [s]."""
_SHOWN = 4
_CONFIG = "kafka-configs.sh --alter --entity-type topics --entity-name NAME --add-config SETTING=VALUE"


def judge_topics(prefix: str, absent: Mapping[str, str], differing: Mapping[str, Iterable[str]]) -> Iterator[Finding]:
    """Judge whether the topics exist, and how they are set up.

    Parameters
    ----------
    absent
        Kafka's name of the error, for each topic that is not seen.
    differing
        Differences of topics from the ICD and the deployment, as `facade.admin.topics.differences` words
        them.
    """
    for why, names in _by_text({name: [why] for name, why in absent.items()}):
        if why == "TOPIC_AUTHORIZATION_FAILED":
            yield Finding(UNKNOWN, _topics(names), "not shown to this principal", "give it Describe on them")
        else:
            do = "sdp-facade topics create" if why.startswith("UNKNOWN_TOPIC") else "look at the brokers"
            yield Finding(FAILED, _topics([prefix + name for name in names]), f"not there ({why})", do)
    for text, names in _by_text(differing):
        level = FAILED if text.partition(":")[0] in _GRAVE else DEGRADED
        do = _CONFIG if "." in text.partition(":")[0] else "see how-to/run-on-kafka: the topics"
        yield Finding(level, _topics(names), text, do)


def judge_replicas(states: Mapping[str, tuple[int, int, int, int]]) -> Iterator[Finding]:
    """Judge whether topics can be written.

    `states`: partitions without a leader, replicas, those in sync, and how many of them must confirm, by topic.
    """
    texts: dict[str, list[str]] = {}
    for name, (leaderless, replicas, in_sync, wanted) in states.items():
        if leaderless:
            texts[name] = ["no broker leads some partitions: nobody can read or write them"]
        elif in_sync < wanted:
            texts[name] = [f"{in_sync} replicas are in sync, {wanted} must confirm: whatever is written is refused"]
        elif in_sync < replicas:
            texts[name] = [f"{in_sync} of {replicas} replicas are in sync"]
    for text, names in _by_text(texts):
        level = DEGRADED if text.endswith("are in sync") else FAILED
        yield Finding(level, _topics(names), text, "start the brokers that are away")


def used_by(settings: Settings, icd: Icd) -> Icd:
    """Return the interface without the topics that a deployment does not use."""
    used = {name: topic for name, topic in icd.topics.items() if not topic.setting or getattr(settings, topic.setting)}
    return replace(icd, topics=used)


def needs_of(icd: Icd, role: str) -> Needs:
    """Return the rights on topics that a role of the ICD needs."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, topic in icd.topics.items():
        for right, roles in (("READ", topic.readers), ("WRITE", topic.writers)):
            if role in roles:
                found[name] |= {right, "DESCRIBE"}
    return {name: frozenset(rights) for name, rights in found.items()}


def judge_rights(role: str, needs: Needs, rights: Needs, prefix: str) -> Iterator[Finding]:
    """Judge the rights of this principal on topics for a role; `judge_topics` judges a topic that is not shown."""
    lacking = {
        name: [", ".join(sorted(wanted - rights[name]))]
        for name, wanted in needs.items()
        if name in rights and wanted - rights[name]
    }
    for text, names in _by_text(lacking):
        each = " ".join(f"--topic {prefix}{name}" for name in names)
        do = f"kafka-acls.sh --add --allow-principal USER {' '.join(f'--operation {one}' for one in text.split(', '))}"
        yield Finding(FAILED, f"rights of {role}", f"this principal lacks {text} on {_topics(names)}", f"{do} {each}")


def judge_encryption(properties: Mapping[str, str], brokers: Collection[str]) -> Iterator[Finding]:
    """Judge whether other hosts on the network can read or write records. On one machine none can."""
    protocol = properties.get("security.protocol", "plaintext").lower()
    away = [one for one in brokers if one.rpartition(":")[0] not in ("127.0.0.1", "localhost", "::1", "[::1]")]
    do = "see how-to/secure-the-bus"
    if not protocol.endswith("ssl") and away:
        open_password = protocol.startswith("sasl") and properties.get("sasl.mechanism", "PLAIN").upper() == "PLAIN"
        what = "passwords and all records" if open_password else "all records"
        yield Finding(
            FAILED if open_password else DEGRADED, "encryption", f"none: anyone on the network can read {what}", do
        )
    if protocol.endswith("ssl"):
        if properties.get("enable.ssl.certificate.verification", "true").lower() == "false":
            yield Finding(
                FAILED, "encryption", "certificates are not checked: another host could act as the broker", do
            )
        elif properties.get("ssl.endpoint.identification.algorithm", "https").lower() == "none":
            text = "names in certificates are not checked: any host with a certificate may be the broker"
            yield Finding(DEGRADED, "encryption", text, do)
    if away and not protocol.startswith("sasl") and not properties.get("ssl.certificate.location"):
        yield Finding(DEGRADED, "login", "none: the brokers accept any client", do)


def describe_lag(group: str, state: GroupState) -> Finding:
    """Describe the position of a group, also without a finding."""
    behind = sum(max(0, one.end - max(one.committed, one.begin)) for one in state.positions)
    text = f"{state.members} members, {behind} records behind on {len(state.positions)} partitions"
    return Finding(NOTE, f"group {group}", text)


def judge_lag(icd: Icd, group: str, state: GroupState, now: Time) -> Iterator[Finding]:
    """Judge the position of a group; `now`: by the broker's clock."""
    for name, partition, committed, begin, end, since in state.positions:
        topic = icd.topics.get(name)
        about = f"group {group}, {name}/{partition}"
        waits, lag = (max(0.0, as_seconds(now - since)) if since else 0.0), max(0, end - max(committed, begin))
        if committed > end:
            text = f"its place is {committed}, the topic ends at {end}: the topic was made again, or has lost records"
            yield Finding(FAILED, about, text, "stop the workers, and see how-to/find-lost-data")
        elif committed < begin:
            text = f"{begin - committed} records were deleted before anybody took them"
            yield Finding(FAILED, about, text, "start more workers, or keep records longer")
        elif lag and not state.members:
            text = f"nobody takes its {lag} records, the first for {waits:.0f} s"
            yield Finding(FAILED, about, text, "start a worker")
        elif topic is not None and topic.retention and waits > _NEAR_THE_END * topic.retention:
            text = f"{lag} records, {waits:.0f} s: they are deleted after {topic.retention:.0f} s"
            yield Finding(FAILED, about, text, "start another worker at once")
        elif waits > _OLD_AFTER:
            yield Finding(DEGRADED, about, f"{lag} records behind, {waits:.0f} s", "start another worker")


def judge_clocks(offsets: Mapping[str, float]) -> Iterator[Finding]:
    """Judge clocks by their differences to the broker's [s]."""
    for who, ahead in offsets.items():
        if abs(ahead) > _WRONG_CLOCK:
            level = FAILED if abs(ahead) > _USELESS_CLOCK else DEGRADED
            text = f"{abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} the broker's"
            yield Finding(level, f"clock of {who}", text, "let its host and the brokers follow NTP")


def judge_features(apis: Mapping[str, int]) -> Iterator[Finding]:
    """Judge the features of the brokers, by the newest version of each request that they support."""
    if not apis:
        yield Finding(UNKNOWN, "brokers", "their features are not known")
    elif "EndTxn" not in apis or "InitProducerId" not in apis:
        yield Finding(FAILED, "brokers", "no transactions: workers cannot commit", "Kafka 2.8 or newer")
    elif apis.get("Metadata", 0) < 10:
        text = "topics have no ids: one that was made again cannot be told from the one before"
        yield Finding(DEGRADED, "brokers", text, "Kafka 2.8 or newer")
    elif apis["EndTxn"] < 5:
        yield Finding(NOTE, "brokers", "older than Kafka 4.0; the facade is tested with 4.4")


def _by_text(texts: Mapping[str, Iterable[str]]) -> list[tuple[str, list[str]]]:
    found: dict[str, list[str]] = defaultdict(list)
    for name, lines in texts.items():
        for text in lines:
            found[text].append(name)
    return [*found.items()]


def _topics(names: Collection[str]) -> str:
    return f"topic{'s' if len(names) > 1 else ''} {listed(sorted(names), _SHOWN)}"

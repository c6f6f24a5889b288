"""The rights of each role follow from the ICD."""

from collections import Counter
from itertools import chain

import msgspec
import pytest
import yaml
from typer.testing import CliRunner

from facade.admin import access, rights
from facade.admin.rights import Acl
from facade.kernel.cli.app import app
from facade.kernel.config import Settings
from facade.kernel.icd.load import load
from facade.kernel.icd.topic_model import READER
from facade.kernel.manifest import manifests

ICD = load()
SETTINGS = Settings(prefix="mid.", history=True, replay=True)
PLAN = rights.planned(ICD, SETTINGS, {"controller": ["vis-receive"]})
WORKERS = {worker.name for one in manifests() for worker in one.workers}


def test_a_role_has_its_topics_and_no_others() -> None:
    for role, own in ICD.roles.items():
        found = {(one.operation, one.name) for one in rights.of_role(ICD, role, SETTINGS) if one.kind == "topic"}
        reads = {("Read", f"mid.{name}") for name, topic in ICD.topics.items() if role in topic.readers}
        writes = {("Write", f"mid.{name}") for name, topic in ICD.topics.items() if role in topic.writers}
        assert found == reads | writes | {(right, f"mid.{name}") for right in own.every_topic for name in ICD.topics}
    assert max(Counter(PLAN).values()) == 1
    assert all(one.name.startswith("mid.") and not one.denied for one in PLAN)


def test_only_roles_of_all_topics_have_those_that_the_settings_leave_out() -> None:
    """Topics are created before they are used."""
    left_out = {"mid.history", "mid.replay"}
    plan = rights.planned(ICD, Settings(prefix="mid."))
    having = {one.principal for one in plan if one.kind == "topic" and one.name in left_out}
    assert having == {f"sdp-{name}" for name, role in ICD.roles.items() if role.every_topic and not role.setting}


def test_a_replay_may_write_only_where_one_is_shown() -> None:
    """Its login may write to each topic: in other deployments it would be that of everybody."""
    for shown in (False, True):
        plan = rights.planned(ICD, Settings(prefix="mid.", replay=shown))
        assert ("sdp-replay" in {one.principal for one in plan}) is shown


def test_only_workers_and_redrives_have_transactions_and_each_in_a_group_of_its_own() -> None:
    ids = {one.principal: (one.name, one.prefixed) for one in PLAN if one.kind == "transactional-id"}
    of_workers = {f"sdp-{role}": (f"mid.{ICD.roles[role].group}-", True) for role in WORKERS}
    assert ids == of_workers | {"sdp-operator-tool": ("mid.dead-letters-redrive", False)}
    joined = {one.principal: one.name for one in PLAN if one.kind == "group" and one.operation == "Read"}
    groups = {f"sdp-{role}": f"mid.{ICD.roles[role].group}" for role in WORKERS}
    assert joined == groups | {"sdp-controller": "mid.vis-receive"}
    assert len(set(joined.values())) == len(joined)


def test_whoever_only_writes_sees_no_group() -> None:
    reading = {one.principal for one in PLAN if one.name == f"mid.{READER}"}
    only_writing = {"sdp-alert-source", "sdp-quality-pipeline", "sdp-storage", "sdp-shipper"}
    assert reading == {f"sdp-{role}" for role in ICD.roles} - only_writing


def test_where_logs_go_to_the_bus_each_process_with_a_heartbeat_may_write_them() -> None:
    """A controller sends its log as device servers and workers do, and was refused."""
    exporting = rights.planned(ICD, Settings(prefix="mid.", history=True, log_export="logs"))
    more = {one.principal for one in set(exporting) - set(PLAN)}
    assert {"sdp-control", "sdp-aggregate", "sdp-archive-run", "sdp-controller"} <= more
    assert not more & {"sdp-shipper", "sdp-deployer", "sdp-inspector", "sdp-ingest-node"}


def test_missing_and_surplus_rights_are_told_apart() -> None:
    one, *others = PLAN
    assert rights.missing(PLAN, others) == [one]
    assert rights.surplus(PLAN, PLAN) == []
    strange = [
        one._replace(principal="sdp-quality-pipeline", name="mid.commands", operation="Write"),
        one._replace(principal="guest", name="*"),
        one._replace(principal="guest", name="m", prefixed=True),
        one._replace(denied=True),
        one._replace(host="10.0.0.1"),
        Acl("sdp-control", "Alter", "cluster", "kafka-cluster"),
        Acl("guest", "Write", "topic", "mid.comm", prefixed=True),
        Acl("guest", "Write", "transactional-id", "mid.aggregate-0"),
    ]
    of_others = [Acl("guest", "Alter", "cluster", "kafka-cluster"), Acl("sdp-control", "Read", "topic", "low.alerts")]
    assert rights.surplus(PLAN, [*PLAN, *strange, *of_others]) == sorted(strange)
    assert str(strange[0]) == "sdp-quality-pipeline may Write topic mid.commands"
    assert str(one._replace(denied=True, host="a", prefixed=True)).endswith("* from a")


def test_the_forms_for_other_tools_have_each_right_and_the_quotas() -> None:
    commands = [*rights.as_commands(ICD, PLAN, "kafka:9092")]
    given = [word for line in commands for word in line.split() if word.startswith("mid.")]
    assert len(given) == len(PLAN)
    assert any("--entity-name sdp-shipper --add-config producer_byte_rate=20000000" in line for line in commands)
    users = {one["metadata"]["name"]: one["spec"] for one in yaml.safe_load_all(rights.as_strimzi(ICD, PLAN, "sdp"))}
    assert set(users) == {f"sdp-{role}" for role in ICD.roles}
    assert users["sdp-shipper"]["quotas"] == {"producerByteRate": 20_000_000}
    worker = users["sdp-aggregate"]["authorization"]["acls"]
    transactions = {"type": "transactionalId", "name": "mid.aggregate-", "patternType": "prefix"}
    assert {"resource": transactions, "operations": ["Write"]} in worker
    assert sum(len(rule["operations"]) for one in users.values() for rule in one["authorization"]["acls"]) == len(PLAN)


def test_rights_at_the_brokers_are_read_as_they_are_made() -> None:
    for one in (*PLAN[:3], PLAN[0]._replace(denied=True), Acl("x", "DescribeConfigs", "topic", "a", prefixed=True)):
        assert access._acl(access.AclBinding(*access._parts(one))) == one


class Brokers:
    """Plays the access rules of the brokers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.acls: list[Acl] = []
        monkeypatch.setattr("facade.tools.rights.read_acls", lambda _: list(self.acls))
        monkeypatch.setattr("facade.tools.rights.create_acls", lambda _, acls: self.acls.extend(acls))
        monkeypatch.setattr("facade.tools.rights.delete_acls", lambda _, acls: [self.acls.remove(one) for one in acls])

    def run(self, *arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(
            app, ["rights", *arguments, "--group", "controller=c"], env={"SDP_TOPIC_PREFIX": "t."}
        )
        return done.exit_code, done.output


def test_rights_are_given_compared_and_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers(monkeypatch)
    code, output = brokers.run("check")
    assert (code, "missing: sdp-control may Read topic t.ingest.summary" in output) == (1, True)
    code, output = brokers.run("apply")
    own = [one for one in brokers.acls if one.principal == "sdp-control"]
    assert (code, f"given: {len(own)} rights of sdp-control\n" in output) == (0, True)
    assert output.count("given: ") == len({one.principal for one in brokers.acls})
    assert brokers.run("check")[0] == 0
    odd, far = Acl("guest", "Read", "topic", "t.alerts"), Acl("guest", "Read", "topic", "*")
    brokers.acls += [odd, far]
    assert brokers.run("check")[0] == 1
    code, output = brokers.run("apply", "--prune")
    assert "removed: guest may Read topic t.alerts" in output
    assert "surplus: guest may Read topic *" in output
    assert (odd in brokers.acls, far in brokers.acls) == (False, True)


NESTED = ["t.", "t.low.", "t.ingest.", "t", "t-", "t.l", ""]
"""Prefixes of deployments on one cluster, of which some begin with others."""


@pytest.mark.parametrize("prefix", NESTED)
@pytest.mark.parametrize("group", [[], ["--group", "controller=c"]])
def test_prune_removes_no_right_of_another_deployment(
    monkeypatch: pytest.MonkeyPatch, prefix: str, group: list[str]
) -> None:
    brokers = Brokers(monkeypatch)
    plans = {one: rights.planned(ICD, Settings(prefix=one), {"controller": ["c"]}) for one in NESTED}
    odd = {one: Acl("guest", "Read", "topic", f"{one}alerts") for one in NESTED}
    brokers.acls = [*chain(*plans.values()), *odd.values()]
    done = CliRunner().invoke(app, ["rights", "apply", "--prune", *group], env={"SDP_TOPIC_PREFIX": prefix})
    assert done.exit_code == 0, done.output
    of_others = {acl for one in NESTED if one != prefix for acl in [*plans[one], odd[one]]}
    assert of_others <= set(brokers.acls)
    assert {*plans[prefix]} <= set(brokers.acls)
    assert odd[prefix] not in brokers.acls


@pytest.mark.parametrize("text", ["controller", "controller=", "aggregate=mine", "=x"])
def test_only_a_role_that_names_its_groups_gets_one_by_an_option(text: str) -> None:
    done = CliRunner().invoke(app, ["rights", "export", "--group", text])
    assert done.exit_code == 1
    assert "expected ROLE=GROUP with a role of controller" in str(done.exception)


def test_the_icd_refuses_a_transactional_id_that_is_not_of_the_group() -> None:
    from facade.kernel.icd.check_topics import check_topics

    role = msgspec.structs.replace(ICD.roles["aggregate"], transactional_id="other-*")
    wrong = msgspec.structs.replace(ICD, roles={**ICD.roles, "aggregate": role})
    assert [one.what for one in check_topics(wrong) if "transactional_id" in str(one)]

"""Commands that wait for a second person: who may approve or withdraw them, how they end, that none is done twice."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from facade.flows.commands.approvals import Decision, approve, is_second_person, read_named, withdraw
from facade.flows.commands.audit import command_entry, held_entry
from facade.flows.commands.gateway import Gateway
from facade.flows.commands.messages import HELD_COMMANDS, AckMessage
from facade.flows.commands.rules import MOST_PENDING
from facade.flows.commands.view import as_dict
from facade.kernel.bus.port import Record
from facade.kernel.clock import Time
from facade.kernel.config import Settings
from facade.kernel.errors import CommandRefused, ConfigError, FacadeError, NotSent, OutcomeUnknown
from facade.kernel.runtime.event_loop import Timing
from tests.support.commanding import ICD, OTHER, SUBARRAY, Bench, Server
from tests.support.simulated_bus import Answer

SETTINGS = Settings(approvals="SdpMaster.Off, SdpSubarray.ReleaseAllResources, SdpSubarray.Configure")
NAME = "ReleaseAllResources"
CONFIGURE = {
    "interface": "https://schema.skao.int/ska-sdp-configure/0.4",
    "scan_type": "science",
    "transaction_id": "txn-test-20270115-0001",
}
"""An argument with which a call can be repeated."""
ANN, BEN = "10.0.0.7, process 1", "10.0.0.8, process 2"


class Site(Bench):
    """A deployment in which releasing all resources takes two persons."""

    def __init__(self) -> None:
        super().__init__()
        self.report(State="ON", obsState="IDLE")
        self.start()

    def start(self) -> None:
        """Begin the next life of the device server, as after a kill."""
        self.now: Server = self.server(ready=False, settings=SETTINGS)
        while not self.now.gateway.lease.held(self.clock.monotonic()):
            self.wait(0.5)

    def ask(self, client: str = ANN, operator: str = "ann") -> str:
        id = self.now.give(NAME, client=client, operator=operator)
        self.now.cycle()
        return id

    def configure(self, client: str = ANN, operator: str = "ann") -> str:
        return self.now.give("Configure", CONFIGURE, client=client, operator=operator)

    def approve(self, id: str, client: str = BEN, operator: str = "ben") -> str:
        done = approve(self.now.gateway, SUBARRAY, Decision(id=id, operator=operator), client=client)
        self.now.cycle()
        return done

    def withdraw(self, id: str, client: str = ANN, operator: str = "ann") -> str:
        done = withdraw(self.now.gateway, SUBARRAY, Decision(id=id, operator=operator), client=client)
        self.now.cycle()
        return done

    def wait(self, seconds: float) -> None:
        for _ in range(round(2 * seconds)):
            self.clock.sleep(0.5)
            self.now.cycle(1)

    def status(self, id: str) -> str:
        return str(self.now.tracker.find(id).status)


@pytest.fixture
def site() -> Site:
    return Site()


def test_a_command_waits_until_a_second_person_approves_it(site: Site) -> None:
    id = site.ask()
    assert (site.commands(), site.status(id), len(site.broker.read(HELD_COMMANDS))) == ([], "HELD", 1)
    assert site.now.shows("longRunningCommandStatus") == (id, "STAGING")
    assert site.now.shows("commandedObsState") == "IDLE", "as nothing is under way"
    assert site.now.gateway.show(SUBARRAY) == ("ON", "IDLE")
    site.wait(30)
    assert site.approve(id) == id
    (command,) = site.commands()
    assert (command.id, command.operator, command.client) == (id, "ann", ANN)
    assert (command.approver, command.approver_client) == ("ben", BEN)
    assert command.not_after - command.issued == 5_000_000, "from the approval on"
    assert site.now.gateway.show(SUBARRAY) == ("ON", "RESOURCING")
    site.report(obsState="EMPTY", command=id)
    site.ack(id, "COMPLETED")
    site.now.cycle()
    assert site.now.shows("longRunningCommandResult") == (id, '[0, "COMPLETED"]')
    found = as_dict(site.now.tracker.find(id))
    assert (found["operator"], found["approver"], found["approver_client"]) == ("ann", "ben", BEN)
    asked, given = held_entry(site.broker.read(HELD_COMMANDS)[0]), command_entry(site.broker.read("commands")[0])
    assert asked is not None
    assert given is not None
    assert (asked.act, asked.client, asked.operator) == (f"{NAME} held", ANN, "ann")
    assert (given.act, given.client, given.operator) == (f"{NAME} approved", BEN, "ben")
    assert given.said == f"{id} of ann, from {ANN}"


@pytest.mark.parametrize(
    ("first", "second", "is_another"),
    [
        ((ANN, "ann"), (BEN, "ben"), True),
        ((ANN, "ann"), (ANN, "ben"), True),  # the operator's page acts for both
        ((ANN, "ann"), (BEN, "ann"), False),  # the same program, as a server on another host names it
        ((ANN, "ann"), (BEN, " Ann "), False),
        (("", "ann"), ("", "ben"), True),
        ((ANN, "Ann <https://sso#1>"), (ANN, "Ann <https://sso#2>"), True),
        ((ANN, "Ann <https://sso#1>"), (ANN, "Ben <https://sso#1>"), False),  # one person with two names
        ((ANN, "ann<https://sso#1>"), (BEN, "Ben <https://sso#2>"), True),  # a token whose name has the subject
    ],
)
def test_who_is_a_second_person(site: Site, first: tuple[str, str], second: tuple[str, str], is_another: bool) -> None:
    id = site.ask(*first)
    if is_another:
        with pytest.raises(CommandRefused, match="expected the person who gave it"):
            site.withdraw(id, *second)
        site.approve(id, *second)
    else:
        with pytest.raises(CommandRefused, match="expected another person than"):
            site.approve(id, *second)
        site.now.cycle()
        assert "ApproveCommand by" in site.now.shows("lastRefusal")
        site.withdraw(id, *second)
    assert len(site.commands()) == is_another


@pytest.mark.parametrize(
    ("first", "second"),
    [("Ann <https://sso#1>", "ben"), ("ann", "Ben <https://sso#2>"), ("ann", "Ann <https://sso#1>")],
)
def test_a_name_and_a_subject_may_be_one_person_or_two_so_neither_approves_nor_withdraws(
    site: Site, first: str, second: str
) -> None:
    """Ben could be Ann with her token; and he withdrew her command."""
    id = site.ask(ANN, first)
    with pytest.raises(CommandRefused, match="both with a subject or neither"):
        site.approve(id, BEN, second)
    with pytest.raises(CommandRefused, match="expected the person who gave it"):
        site.withdraw(id, BEN, second)
    site.withdraw(id, ANN, first)


def test_a_command_that_waits_for_a_second_person_needs_the_name_of_the_first(site: Site) -> None:
    with pytest.raises(CommandRefused, match=r"expected the name of the operator, got none; give it with GiveCommand"):
        site.now.give(NAME, client=ANN)
    site.report(obsState="READY")
    site.now.cycle()
    site.now.give("End", client=ANN)
    assert [one.command for one in site.commands()] == ["End"]
    nameless = msgspec.structs.replace(site.commands()[0], operator="")
    assert not is_second_person(nameless, "ben"), "one of an earlier release"


def test_without_an_approval_it_ends_with_the_reason_and_is_not_executed(site: Site) -> None:
    id = site.ask()
    site.wait(63)  # with the question to the brokers
    found = site.now.tracker.find(id)
    assert (found.status, found.text) == ("UNDELIVERED", "no second person approved it within 60 s")
    assert site.now.shows("longRunningCommandStatus") == (id, "FAILED")
    with pytest.raises(CommandRefused, match="expected the id of a command of this device that waits"):
        site.approve(id)
    for _ in range(2):  # a restart neither revives it, nor writes its outcome again
        site.start()
        site.wait(20)
        assert site.status(id) == "UNDELIVERED"
    assert site.commands() == []
    _, ended = site.broker.read(HELD_COMMANDS)
    assert json.loads(ended.value or b"")["status"] == "UNDELIVERED"
    assert held_entry(ended) is None, "nobody did it"
    assert site.acks() == []


def test_a_clock_that_was_set_back_prolongs_no_wait(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The issue times of commands that follow one of the future are in the future too."""
    monkeypatch.setattr(site.now.tracker, "next_issue", lambda device, now_us: now_us + 3_600_000_000)
    id = site.ask()
    found = site.now.tracker.find(id)
    assert found.message.not_after == site.clock.now_us() + 60_000_000
    assert found.message.issued > found.message.not_after
    site.wait(63)
    assert (found.status, found.text) == ("UNDELIVERED", "no second person approved it within 60 s")


@pytest.mark.parametrize(("status", "withdrawer"), [("ABORTED", "ann"), ("ABORTED", ""), ("UNDELIVERED", "")])
def test_a_controller_can_neither_withdraw_a_command_that_waits_nor_let_it_expire(
    site: Site, status: str, withdrawer: str
) -> None:
    id = site.ask()
    site.ack(id, status, withdrawer=withdrawer, withdrawer_client=withdrawer and ANN)
    site.wait(1)
    assert site.status(id) == "HELD"
    letters = [dict(record.headers)["dl.reason"] for record in site.broker.read("dead-letters")]
    assert letters == [b"withdrawer"] * bool(withdrawer)


def test_who_gave_a_command_withdraws_it_and_it_is_not_executed(site: Site) -> None:
    id = site.ask()
    assert site.withdraw(id) == id
    found = site.now.tracker.find(id)
    assert (found.status, found.text, found.began) == ("ABORTED", f"withdrawn by ann, from {ANN}", 0)
    assert site.now.shows("longRunningCommandStatus") == (id, "ABORTED")
    assert site.now.shows("longRunningCommandResult") == (id, json.dumps([7, found.text]))
    for decide in (site.approve, site.withdraw):
        with pytest.raises(CommandRefused, match="expected the id of a command of this device that waits"):
            decide(id)
    for _ in range(2):  # a restart does not revive it
        site.start()
        site.wait(20)
        assert site.status(id) == "ABORTED"
    site.wait(62)
    assert site.commands() == []
    entry = held_entry(site.broker.read(HELD_COMMANDS)[1])
    assert entry is not None
    assert entry[1:] == (f"{NAME} withdrawn", SUBARRAY, ANN, "ann", id, "approval")
    assert site.acks() == [], "which controllers may write as well"


def test_a_repeated_call_beside_the_reading_of_a_withdrawal_puts_nothing_on_commands(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop reads the withdrawal between two looks of the caller's thread at the command."""
    id = site.configure()  # neither this record nor the withdrawal was read yet
    withdraw(site.now.gateway, SUBARRAY, Decision(id=id, operator="ann"), client=ANN)
    look = Gateway._repeated

    def look_and_read(*call: Any) -> str | None:
        found = look(*call)
        site.now.cycle()
        return found

    monkeypatch.setattr(Gateway, "_repeated", look_and_read)
    assert site.configure() == id
    site.now.cycle()
    assert (site.status(id), site.commands()) == ("ABORTED", [])


@pytest.mark.parametrize(
    ("status", "withdrawer"), [("IN_PROGRESS", "ann"), ("COMPLETED", "ann"), ("ABORTED", ""), ("UNDELIVERED", "ann")]
)
def test_what_no_device_server_writes_ends_no_command_that_waits(site: Site, status: str, withdrawer: str) -> None:
    id = site.ask()
    (held,) = site.broker.read(HELD_COMMANDS)
    outcome = AckMessage(
        id=id, device=SUBARRAY, command=NAME, status=status, time=Time(1), origin="other", withdrawer=withdrawer
    )
    site.broker.append(replace(held, value=msgspec.json.encode(outcome)))
    site.wait(1)
    assert site.status(id) == "HELD"
    letters = [dict(record.headers)["dl.reason"] for record in site.broker.read("dead-letters")]
    assert letters == [b"status"]


@pytest.mark.parametrize("error", [NotSent("no broker"), OutcomeUnknown("no answer")])
def test_a_withdrawal_that_the_bus_does_not_confirm_leaves_the_command_waiting_or_bars_its_approval(
    site: Site, monkeypatch: pytest.MonkeyPatch, error: FacadeError
) -> None:
    def approve_meanwhile() -> None:
        with pytest.raises(CommandRefused, match="that waits for a second person"):
            site.approve(id)

    id = site.ask()
    monkeypatch.setattr(site.now.gateway.sender, "send", lambda *_: Answer(error, approve_meanwhile))
    with pytest.raises(type(error)):
        site.withdraw(id)
    monkeypatch.undo()
    assert site.status(id) == "HELD"
    if isinstance(error, NotSent):
        site.approve(id)
        assert site.status(id) == "SENT"
        return
    site.now.bus.away = True
    with pytest.raises(OutcomeUnknown, match="outcome of the withdrawal unknown"):
        site.withdraw(id)
    site.now.bus.away = False
    with pytest.raises(CommandRefused, match="that waits for a second person"):
        site.approve(id)
    site.withdraw(id)
    assert (site.status(id), site.commands()) == ("ABORTED", [])


def test_a_withdrawal_during_which_another_server_may_have_approved_the_command_is_not_confirmed(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process stands still between its checks and its send."""

    def stand_still(record: Record, timeout: float) -> Answer:
        def approve_elsewhere() -> None:
            site.start()
            site.approve(id)
            site.broker.append(record)

        return Answer(None, approve_elsewhere)

    id, before = site.ask(), site.now
    monkeypatch.setattr(before.gateway.sender, "send", stand_still)
    with pytest.raises(OutcomeUnknown, match="another device server may have had it approved meanwhile"):
        withdraw(before.gateway, SUBARRAY, Decision(id=id, operator="ann"), client=ANN)
    site.now.cycle()
    assert (site.status(id), len(site.commands())) == ("SENT", 1)


@pytest.mark.parametrize("decide", [Site.approve, Site.withdraw])
def test_nobody_decides_before_the_newest_commands_and_acknowledgements_have_been_read(
    site: Site, decide: Callable[[Site, str], str]
) -> None:
    id = site.ask()
    for number in range(2 * Timing().batch):
        site.ack(f"{site.clock.now():.6f}_{number}_Scan", "ACCEPTED")
    site.now.cycle(1)
    with pytest.raises(CommandRefused, match="are still being read; try again"):
        decide(site, id)
    site.now.cycle()
    assert decide(site, id) == id


@pytest.mark.parametrize("approved", ["before", "after", "never"])
def test_a_restart_keeps_what_waits_and_executes_nothing_twice(site: Site, approved: str) -> None:
    id = site.ask()
    if approved == "before":
        site.approve(id)
    site.start()
    assert site.status(id) == ("SENT" if approved == "before" else "HELD")
    if approved == "after":
        site.approve(id)
    elif approved == "before":
        with pytest.raises(CommandRefused):
            site.approve(id)
    site.wait(62)
    assert site.status(id) == ("UNDELIVERED" if approved == "never" else "TIMED_OUT")
    assert len(site.commands()) == (approved != "never")


@pytest.mark.parametrize("error", [NotSent("no broker"), OutcomeUnknown("no answer")])
@pytest.mark.parametrize("at", ["call", "approval"])
def test_a_bus_that_does_not_answer_leaves_at_most_one_command(
    site: Site, monkeypatch: pytest.MonkeyPatch, error: FacadeError, at: str
) -> None:
    id = site.ask() if at == "approval" else ""
    monkeypatch.setattr(site.now.gateway.sender, "send", lambda *_: Answer(error))
    with pytest.raises(type(error)):
        site.approve(id) if id else site.ask()
    monkeypatch.undo()
    site.now.cycle()
    (one,) = site.now.tracker.pending(SUBARRAY) or site.now.tracker.finished(SUBARRAY, 1)
    lost, unknown = ("UNDELIVERED", "HELD") if at == "call" else ("HELD", "NEW")
    assert one.status == (lost if isinstance(error, NotSent) else unknown)
    if waits := one.status == "HELD":
        site.approve(one.id)
    else:
        with pytest.raises(CommandRefused, match="that waits for a second person"):
            site.approve(one.id)
    assert len(site.commands()) == waits


@pytest.mark.parametrize("arrived", [True, False])
def test_a_command_whose_record_is_not_confirmed_waits_before_and_after_a_restart(site: Site, arrived: bool) -> None:
    site.now.bus.mute, site.now.bus.deaf = arrived, not arrived
    with pytest.raises(OutcomeUnknown, match=r"outcome unknown: .* It cannot be approved after .*GetCommand"):
        site.configure()
    (one,) = site.now.tracker.pending(SUBARRAY)
    assert one.status == "HELD"
    site.now.bus.mute = site.now.bus.deaf = False
    if arrived:
        site.now.cycle()
    assert site.configure() == one.id, "a repeated call sends its record only if it was not seen"
    assert len(site.broker.read(HELD_COMMANDS)) == 1
    site.start()
    assert site.status(one.id) == "HELD"
    assert site.configure() == one.id
    site.approve(one.id)
    assert [command.id for command in site.commands()] == [one.id]


def test_a_repeated_call_sends_nothing_while_the_approval_waits_for_the_bus(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = site.configure()
    site.now.cycle()

    def repeat() -> None:
        monkeypatch.undo()
        with pytest.raises(OutcomeUnknown, match="another call is sending it"):
            site.configure()

    monkeypatch.setattr(site.now.gateway.sender, "send", lambda *_: Answer(NotSent("no broker"), repeat))
    with pytest.raises(NotSent):
        site.approve(id)
    assert site.commands() == []


def test_a_repeated_call_names_who_gave_and_who_approved_the_command(site: Site) -> None:
    id = site.configure()
    site.now.cycle()
    site.now.bus.deaf = True
    with pytest.raises(OutcomeUnknown):
        site.approve(id)
    site.now.bus.deaf = False
    assert site.configure(client=BEN, operator="ben") == id
    (command,) = site.commands()
    assert (command.operator, command.client) == ("ann", ANN)
    assert (command.approver, command.approver_client) == ("ben", BEN)


def test_it_is_checked_in_the_state_of_its_approval(site: Site) -> None:
    id = site.ask()
    site.report(obsState="READY")
    site.now.cycle()
    with pytest.raises(CommandRefused, match="not allowed when obsState is READY"):
        site.approve(id)
    with pytest.raises(CommandRefused, match="not allowed when obsState is READY"):
        site.ask()
    assert site.now.give("End") == site.commands()[0].id, "what waits blocks nothing"
    site.report(obsState="IDLE", command=site.commands()[0].id)
    site.now.cycle()
    site.approve(id)
    assert [one.command for one in site.commands()] == ["End", NAME]
    site.report(obsState="EMPTY", command=id)
    site.now.cycle()
    assert site.now.gateway.show(SUBARRAY) == ("ON", "EMPTY"), "its own report settles it, though its id is older"


def test_an_emergency_waits_for_nobody(site: Site) -> None:
    for _ in range(MOST_PENDING):
        site.ask()
    with pytest.raises(CommandRefused, match="wait for a second person; expected fewer than 32"):
        site.ask()
    site.now.give("Abort", client=ANN)
    assert [one.command for one in site.commands()] == ["Abort"]
    for wrong in ("SdpSubarray.Abort", "Off", "SdpSubarray.Of"):
        with pytest.raises(ConfigError, match=r"approvals: expected some of SdpMaster\.Disable, "):
            Server(site, settings=Settings(approvals=wrong))
    assert not any(one.approval_within for own in ICD.classes.values() for one in own.commands if one.overtakes)


@pytest.mark.parametrize(
    "text", ["junk", "{}", '{"id": "1"}', '{"id": "1", "operator": " "}', '{"id": 1, "operator": "a"}']
)
def test_an_approval_needs_an_id_and_a_name(text: str) -> None:
    with pytest.raises(CommandRefused):
        read_named(Decision, text, "here")
    assert read_named(Decision, json.dumps({"id": "1", "operator": "ben"}), "here") == Decision(id="1", operator="ben")


def test_an_id_of_another_device_or_of_none_is_refused(site: Site) -> None:
    id = site.ask()
    for device, wrong in ((OTHER, id), (SUBARRAY, "nonsense")):
        with pytest.raises(CommandRefused, match="of this device that waits"):
            approve(site.now.gateway, device, Decision(id=wrong, operator="ben"), client=BEN)


def test_no_approved_command_is_still_among_those_that_wait_when_its_record_is_gone() -> None:
    held, commands = ICD.topics[HELD_COMMANDS], ICD.topics["commands"]
    assert held.retention is not None
    assert commands.retention is not None
    # A broker deletes whole segments: records stay for up to one segment more.
    assert held.retention + float(held.config["segment.ms"]) / 1000 < commands.retention

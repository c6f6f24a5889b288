"""Orders of controllers: a device server puts on `commands` what may be given, and refuses everything else."""

from typing import Any

import msgspec
import pytest

from facade.flows.commands.admission import OrderAdmission
from facade.flows.commands.messages import (
    COMMANDS,
    AckMessage,
    CommandMessage,
    ack_record,
    command_id,
    command_record,
    order_id,
    order_record,
)
from facade.flows.commands.outcomes import FINAL
from facade.kernel.bus.port import Record
from facade.kernel.config import Settings
from facade.sdp.messages import Heartbeat
from tests.support import commanding
from tests.support.commanding import ICD, OTHER, SUBARRAY, Bench, Server

SDP, PROCESSING, WORKER = "mid-sdp/control/0", "mid-sdp/processing/01", "mid-sdp/worker/01"
PREPARE = {"interface": "https://schema.skao.int/ska-sdp-prepare/0.1", "scan_type": "target:a"}
TRACE = ("traceparent", b"00-01")


class Site(Bench):
    """A device server of subarrays, and whatever the login of a controller writes."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.settings = Settings(**settings)
        self.now = self.start()

    def start(self) -> Server:
        """Begin the next life of the device server, as after a kill."""
        self.now = self.server(ready=False, settings=self.settings)
        self.wait(4)
        return self.now

    def wait(self, seconds: float) -> None:
        for _ in range(round(2 * seconds)):
            self.beat("sdp", SDP, SUBARRAY)
            self.beat("processing", PROCESSING)
            self.clock.sleep(0.5)
            self.now.cycle(1)

    def beat(self, name: str, *devices: str) -> None:
        beat = Heartbeat(component=name, incarnation=name, time=self.now_us, interval=1.0, devices=list(devices))
        self.broker.append(Record(topic="heartbeats", key=name.encode(), value=msgspec.json.encode(beat)))

    @property
    def now_us(self) -> int:
        return self.clock.now_us()

    def command(self, name: str = "On", device: str = SDP, *, id: str = "", **more: Any) -> CommandMessage:
        """Make a command as a device server writes it."""
        at = self.now_us
        times = {"issued": at, "not_after": at + 5_000_000, "deadline": at + 30_000_000, "ceiling": at + 60_000_000}
        rest = {"argument": None, "repeatable": True, "transaction_id": "txn-test-1", "origin": "control/1"}
        id = id or command_id(at, 117, name)
        return CommandMessage(id=id, device=device, command=name, **{**rest, **times, **more})

    def parent(self, name: str = "On", device: str = SDP, status: str = "ACCEPTED", **more: Any) -> CommandMessage:
        """Put a command on the bus that its controller executes."""
        command = self.command(name, device, **more)
        self.broker.append(command_record(command))
        if status:
            self.acknowledge(command, status)
        return command

    def acknowledge(self, command: CommandMessage, status: Any, origin: str = "sdp") -> None:
        self.broker.append(
            ack_record(AckMessage(id=command.id, device=command.device, command=command.command, status=status,
                                  time=self.now_us, origin=origin))
        )  # fmt: skip

    def order(
        self, parent: str, name: str = "On", device: str = SUBARRAY, *, origin: str = "sdp", **more: Any
    ) -> CommandMessage:
        """Write an order as a controller does, with whatever else it likes."""
        id = more.pop("id", order_id(parent, device, name, 1))
        order = self.command(name, device, id=id, **{"parent": parent, **more})
        order = msgspec.structs.replace(order, origin=origin)
        self.broker.append(order_record(order, (TRACE, ("other", b"x"))))
        return order

    def admitted(self) -> list[CommandMessage]:
        return [one for one in self.commands() if one.parent]

    def outcome(self, command: CommandMessage) -> tuple[str, str]:
        found = [ack for ack in self.acks() if ack.id == command.id and ack.status in FINAL]
        return (found[0].status, found[0].text) if found else ("", "")


@pytest.fixture
def site() -> Site:
    return Site()


def test_an_order_of_an_open_command_comes_to_the_topic_of_commands(site: Site) -> None:
    parent = site.parent()
    first, second = site.order(parent.id), site.order(parent.id, device=OTHER)
    site.wait(1)
    assert [(one.id, one.device, one.parent) for one in site.admitted()] == [
        (first.id, SUBARRAY, parent.id),
        (second.id, OTHER, parent.id),
    ]
    record = site.broker.read(COMMANDS)[-1]
    assert (record.key, record.headers) == (OTHER.encode(), (TRACE,))
    assert site.now.shows("longRunningCommandsInQueue") is not None
    for order in (first, second):
        site.acknowledge(order, "COMPLETED")
    site.wait(15)
    assert len(site.admitted()) == 2, "nothing is written again"
    assert [site.outcome(one)[0] for one in (first, second)] == ["COMPLETED"] * 2


def test_a_refusal_after_progress_is_no_outcome_of_a_parent(site: Site) -> None:
    """By the table of outcomes."""
    parent = site.parent(status="IN_PROGRESS")
    site.acknowledge(parent, "REJECTED")
    order = site.order(parent.id)
    site.wait(1)
    assert [one.id for one in site.admitted()] == [order.id]


def test_orders_go_down_to_executors(site: Site) -> None:
    parent = site.parent("Configure", SUBARRAY)
    prepare = site.order(parent.id, "Prepare", PROCESSING, argument=PREPARE)
    site.wait(1)
    site.acknowledge(prepare, "ACCEPTED", "processing")
    load = site.order(prepare.id, "Load", WORKER, argument=PREPARE, origin="processing")
    site.wait(1)
    assert [one.id for one in site.admitted()] == [prepare.id, load.id]


def test_an_order_that_is_read_before_its_parent_waits_for_it(site: Site) -> None:
    parent = site.command()
    order = site.order(parent.id)
    site.wait(1)
    site.broker.append(command_record(parent))
    site.wait(1)
    assert not site.admitted()
    site.acknowledge(parent, "ACCEPTED")
    site.wait(1)
    assert [one.id for one in site.admitted()] == [order.id]


def refused(site: Site, order: CommandMessage) -> str:
    """Return why an order was refused: it is not on `commands`, is answered, and is among the refused commands."""
    site.wait(4)
    assert order.id not in {one.id for one in site.commands()}
    status, text = site.outcome(order)
    assert status == "REJECTED"
    kept = [msgspec.json.decode(record.value) for record in site.broker.read("command-refusals")]
    assert [(one["device"], one["command"], one["client"]) for one in kept] == [
        (order.device, order.command, f"controller {order.origin}")
    ]
    assert kept[0]["text"] == text
    assert site.now.shows("acksUnknown") == 0
    return text


@pytest.mark.parametrize("status", ["", "COMPLETED", "FAILED", "TIMED_OUT", "ABORTED"])
def test_an_order_of_a_command_that_is_not_executed_is_refused(site: Site, status: str) -> None:
    parent = site.parent(status=status)
    assert "expected a command that is being executed" in refused(site, site.order(parent.id))


def test_an_order_with_a_made_up_parent_is_refused(site: Site) -> None:
    made_up = site.command()
    site.acknowledge(made_up, "ACCEPTED")  # which every controller can write
    assert "expected a command that is being executed" in refused(site, site.order(made_up.id))


def test_a_parent_on_the_topic_of_orders_is_none(site: Site) -> None:
    parent = site.order("1.0_000000000001_On", "Prepare", PROCESSING, argument=PREPARE)
    site.acknowledge(parent, "ACCEPTED")
    site.order(parent.id, "Load", WORKER, argument=PREPARE)
    site.wait(4)
    assert not site.commands()


@pytest.mark.parametrize(
    ("name", "device", "more", "what"),
    [
        ("Off", SUBARRAY, {}, "expected an order that SdpMaster.On may give, got SdpSubarray.Off"),
        ("Nonsense", SUBARRAY, {}, "expected an order that SdpMaster.On may give"),
        ("Load", WORKER, {"argument": PREPARE}, "expected an order that SdpMaster.On may give"),
        ("On", SUBARRAY, {"argument": {}}, "$.argument: expected none"),
        ("On", SUBARRAY, {"origin": "processing"}, f"expected a controller of {SDP}, got 'processing'"),
        ("On", SUBARRAY, {"origin": "nobody"}, f"expected a controller of {SDP}, got 'nobody'"),
    ],
)
def test_an_order_that_its_parent_may_not_give_is_refused(
    site: Site, name: str, device: str, more: dict[str, Any], what: str
) -> None:
    parent = site.parent()
    assert what in refused(site, site.order(parent.id, name, device, **more))


def test_a_wrong_argument_is_refused(site: Site) -> None:
    parent = site.parent("Configure", SUBARRAY)
    order = site.order(parent.id, "Prepare", PROCESSING, argument={**PREPARE, "scan_type": 1})
    assert "$.scan_type: expected text" in refused(site, order)


@pytest.mark.parametrize(
    ("name", "device", "what"),
    [("Configure", SUBARRAY, "$.argument: expected at most 64 levels"), ("On", SDP, "expected an order that")],
)
def test_an_argument_that_is_nested_too_deeply_to_be_written_is_refused(
    site: Site, name: str, device: str, what: str
) -> None:
    """Its decoder may take it, as the stack is shorter there."""
    parent = site.parent(name, device)
    site.wait(1)
    order = site.command("Prepare", PROCESSING, id=order_id(parent.id, PROCESSING, "Prepare", 1), parent=parent.id)
    argument: dict[str, Any] = {}
    for _ in range(10_000):
        argument = {"a": argument}
    order = msgspec.structs.replace(order, argument=argument, origin="sdp")
    tasks = site.now.service.event_loop._periodic_tasks
    admission = next(one for one in tasks if isinstance(one, OrderAdmission))
    admission.fold(order, order_record(msgspec.structs.replace(order, argument=None)))
    assert what in refused(site, order)


@pytest.mark.parametrize(("id", "of"), [("1.0_000000000001_On", None), ("", ""), ("", "x")])
def test_an_order_cannot_take_the_id_of_another_command(site: Site, id: str, of: str | None) -> None:
    """Otherwise the REJECTED of a device server would be the outcome of that command."""
    parent = site.parent()
    victim = site.parent("On", OTHER, status="")
    site.order(parent.id, id=victim.id)
    order = site.order(parent.id if of is None else of, id=id or order_id(parent.id, SUBARRAY, "On", 1))
    site.wait(6)
    assert not site.admitted()
    assert site.outcome(victim) == site.outcome(order) == ("", "")
    letters = [dict(record.headers) for record in site.broker.read("dead-letters")]
    assert [(one["dl.topic"], one["dl.reason"]) for one in letters] == [(b"orders", b"id")] * 2


@pytest.mark.parametrize("approver", ["", "ben"])
def test_a_command_that_takes_two_persons_is_not_ordered_without_one(
    monkeypatch: pytest.MonkeyPatch, approver: str
) -> None:
    """Its parent was approved, or the order is refused; what an approved order leads to is approved as well."""
    master = ICD.classes["SdpMaster"]
    commands = [msgspec.structs.replace(one, orders=("SdpSubarray.Restart",)) for one in master.commands]
    classes = {**ICD.classes, "SdpMaster": msgspec.structs.replace(master, commands=tuple(commands))}
    monkeypatch.setattr(commanding, "ICD", msgspec.structs.replace(ICD, classes=classes))
    site = Site(approvals="SdpMaster.Off, SdpSubarray.Restart")
    parent = site.parent("Off", approver=approver, approver_client=approver and "10.0.0.8, process 2")
    order = site.order(parent.id, "Restart", approver="mallory", operator="ann", client="10.0.0.7, process 1")
    if not approver:
        assert "SdpSubarray.Restart needs a second person" in refused(site, order)
        return
    site.wait(1)
    (found,) = site.admitted()
    assert (found.approver, found.approver_client) == ("ben", "10.0.0.8, process 2")
    assert (found.operator, found.client) == ("", ""), "names of people are not the controller's to give"


def test_only_the_times_and_the_argument_are_the_givers(site: Site) -> None:
    parent = site.parent()
    late = site.now_us + 10**12
    site.order(parent.id, repeatable=False, not_after=late, deadline=late, ceiling=late, transaction_id="another")
    site.wait(1)
    (found,) = site.admitted()
    assert found.not_after == found.deadline == found.ceiling == parent.ceiling
    assert found.repeatable
    assert found.transaction_id == parent.transaction_id


def test_after_a_kill_each_order_is_on_the_topic_of_commands_once(site: Site) -> None:
    parent = site.parent()
    first = site.order(parent.id)
    site.wait(1)
    second = site.order(parent.id, device=OTHER)
    site.start()
    assert [one.id for one in site.admitted()] == [first.id, second.id]
    site.broker.append(order_record(first))
    site.wait(10)
    site.broker.append(order_record(second))
    site.start()
    assert [one.id for one in site.admitted()] == [first.id, second.id]
    assert not site.broker.read("command-refusals")


def test_a_refused_order_is_not_refused_again_after_a_restart(site: Site) -> None:
    order = site.order(site.parent(status="").id)
    refused(site, order)
    site.start()
    site.wait(4)
    assert len([ack for ack in site.acks() if ack.id == order.id]) == 1


@pytest.mark.parametrize("is_known", [True, False])
def test_an_order_that_its_giver_has_ended_is_not_put_on_the_topic_of_commands(site: Site, is_known: bool) -> None:
    parent = site.command()
    order = site.order(parent.id)
    if is_known:
        site.wait(0.5)
    site.acknowledge(order, "ABORTED")
    site.broker.append(command_record(parent))
    site.acknowledge(parent, "FAILED")
    site.wait(4)
    assert not site.admitted()
    assert [ack.status for ack in site.acks() if ack.id == order.id] == ["ABORTED"]


@pytest.mark.parametrize("is_waiting", [True, False])
def test_a_controller_of_another_device_ends_neither_an_order_nor_its_parent(site: Site, is_waiting: bool) -> None:
    """A signature proves a device, and the ids of others are known: they are on the bus, or follow from it."""
    parent = site.command()
    if not is_waiting:
        site.broker.append(command_record(parent))
        site.acknowledge(parent, "ACCEPTED")
        site.wait(0.5)
    id = order_id(parent.id, SUBARRAY, "On", 1)
    if is_waiting:
        assert site.order(parent.id).id == id
        site.wait(0.5)
    for of in (parent.id, id):
        site.ack(of, "COMPLETED", device=OTHER)
    site.wait(0.5)
    if is_waiting:
        site.broker.append(command_record(parent))
        site.acknowledge(parent, "ACCEPTED")
    else:
        site.order(parent.id)
    site.wait(1)
    assert [one.id for one in site.admitted()] == [id]
    (order,) = site.admitted()
    assert site.now.tracker.find(id).status != "COMPLETED"
    site.acknowledge(order, "FAILED")
    site.wait(1)
    assert site.now.tracker.find(id).status == "FAILED"


def test_a_server_without_the_lease_admits_nothing(site: Site) -> None:
    other = site.server(ready=False, settings=site.settings)
    site.order(site.parent().id)
    other.cycle(3)
    assert not site.admitted()
    site.wait(1)
    assert len(site.admitted()) == 1


def test_a_flood_of_orders_is_bounded(site: Site) -> None:
    parent = site.parent(status="")
    for number in range(1, 1500):
        site.order(parent.id, id=order_id(parent.id, SUBARRAY, "On", number))
    site.wait(4)
    assert len(site.broker.read("command-refusals")) <= 1000

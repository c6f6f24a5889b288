"""Orders of a controller to other controllers; what these would say is written by the test."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from facade.flows.commands.messages import COMMANDS, ORDERS, CommandMessage, command_record, decode_command
from facade.kernel.bus.signatures import PARENT_HEADER, UNSIGNED, Signatures
from facade.kernel.config import ControllerKey
from facade.sdk.controller.call import Call
from facade.sdk.controller.simulator.controller import MASTER, SimulatedController
from facade.sdk.controller.simulator.controller import PROCESSING as PROCESSING_CLASS
from tests.support.controllers import COMPONENT, DEVICES, FIRST, ICD, SECOND, Life, Site

PROCESSING = "mid-sdp/processing/01"
ORDERED = {PROCESSING: "ProcessingController", "mid-sdp/worker/01": "ProcessingWorker"}
ARGUMENT = {"scan_type": "target:a"}
PREPARE = (PROCESSING, "Prepare", ARGUMENT)


@pytest.fixture
def site() -> Site:
    site = Site()
    for device in DEVICES:
        site.say(device, State="ON", obsState="IDLE")
    return site


def children(site: Site) -> list[CommandMessage]:
    assert len(site.broker.read(COMMANDS)) <= 2, "what the test has given: a controller writes no commands"
    return [decode_command(record.value) for record in site.broker.read(ORDERS)]


def life(site: Site, answer: str = "", handle: Any = None, signatures: Signatures = UNSIGNED) -> Life:
    """A controller whose handler gives an order; the order is answered while the handler waits."""
    one = Life(site, ordered=ORDERED, signatures=signatures)
    one.handle = handle or (lambda call: call.follow([call.order(*PREPARE)])[0].status)

    def meanwhile(call: Call | None) -> None:
        site.clock.sleep(0.5)
        for child in children(site) if answer else ():
            if not site.outcome(child):
                site.acknowledge(child, answer)
        one._pause()

    one.meanwhile = meanwhile
    return one


def test_an_order_is_a_command_within_the_times_of_its_parent(site: Site) -> None:
    message = site.send("Configure", repeatable=False)
    life(site, "COMPLETED").work()
    assert site.outcomes(message)[0].result == "COMPLETED"
    (order,) = children(site)
    assert (order.parent, order.transaction_id) == (message.id, message.transaction_id)
    assert order.argument == {"interface": "https://schema.skao.int/ska-sdp-prepare/0.1", **ARGUMENT}
    assert order.not_after <= order.deadline <= message.deadline
    assert order.deadline <= order.ceiling <= message.ceiling
    record = site.broker.read(ORDERS)[-1]
    assert record.key == PROCESSING.encode()
    assert record.headers == (("traceparent", b"00-01"),)


def test_an_order_proves_that_the_controller_of_its_parent_gives_it(site: Site) -> None:
    own = Signatures([ControllerKey(devices=FIRST, key="a key of the superior, which is longer")], [ORDERS])
    site.send("Configure", repeatable=False)
    life(site, signatures=own).work()
    order = site.broker.read(ORDERS)[-1]
    assert own.order_refusal(order, FIRST) is None
    assert dict(order.headers).keys() == {"traceparent", PARENT_HEADER}
    assert own.order_refusal(replace(order, headers=()), FIRST) is not None


def test_an_order_that_nobody_answers(site: Site) -> None:
    message = site.send("Configure", repeatable=False)
    life(site).work()
    (outcome,) = site.outcomes(message)
    assert outcome.status == "FAILED"
    assert outcome.text.startswith(
        f"NotFollowed: {PROCESSING}: TIMED_OUT no outcome in time, nobody has acknowledged it"
    )
    assert outcome.time <= message.deadline
    assert site.outcome(children(site)[0]) == "TIMED_OUT"


def test_an_abort_ends_the_order(site: Site) -> None:
    message = site.send("Configure", repeatable=False)
    one = life(site)
    wait = one.meanwhile

    def meanwhile(call: Call | None) -> None:
        if children(site) and len(site.broker.read(COMMANDS)) == 1:
            site.send("Abort")
        wait(call)

    one.meanwhile = meanwhile
    original = one.handle
    one.handle = lambda call: None if call.command == "Abort" else original(call)
    one.work()
    assert site.outcome(message) == site.outcome(children(site)[0]) == "ABORTED"


@pytest.mark.parametrize("begun", [False, True], ids=["waits", "runs"])
@pytest.mark.parametrize(
    ("ended", "outcome"),
    [("ABORTED", "ABORTED"), ("COMPLETED", "COMPLETED"), ("IN_PROGRESS REJECTED", "COMPLETED"), ("", "COMPLETED")],
)
def test_an_order_whose_parent_was_ended_by_a_controller_that_does_not_know_it(
    site: Site, begun: bool, ended: str, outcome: str
) -> None:
    """As it had been killed since: the executor looks itself. What has completed leaves its orders alone."""
    parent = site.command("Configure", FIRST)
    order = msgspec.structs.replace(site.command("ReleaseAllResources", SECOND), parent=parent.id)
    site.broker.append(command_record(order))
    one = Life(site)

    def end(_: Call | None = None) -> None:
        one.meanwhile = lambda _: None
        for status in ended.split():
            site.acknowledge(parent, status)
        one.step()

    if begun:
        one.meanwhile = end
    else:
        end()
    one.work()
    assert site.outcome(order) == outcome
    assert len(site.begun) == (begun or outcome == "COMPLETED")


@pytest.mark.parametrize(
    ("wanted", "what"),
    [
        (("mid-sdp/subarray/01", "On", None), "expected another device"),
        (("mid-sdp/other/01", "On", None), "expected a device or executor of"),
        ((PROCESSING, "Load", ARGUMENT), "expected one of Prepare, got 'Load'"),
        ((PROCESSING, "Prepare", {"scan_type": 1}), "$.scan_type: expected text"),
    ],
)
def test_a_wrong_order_is_not_given(site: Site, wanted: tuple[str, str, Any], what: str) -> None:
    message = site.send("Configure", repeatable=False)
    life(site, handle=lambda call: call.order(*wanted)).work()
    assert site.outcome(message) == "FAILED"
    assert what in site.outcomes(message)[0].text
    assert not children(site)


SDP = "mid-sdp/control/0"


def cascade(
    site: Site,
    answers: dict[str, str],
    device: str = SDP,
    device_class: str = MASTER,
    ordered: dict[str, str] = DEVICES,
) -> Life:
    """The simulated controller of SDP, or of another device; those below answer their orders as the test says."""
    simulated = SimulatedController(
        ICD, component=COMPONENT, faults=[], report=None, seed=1, speed=1.0, clock=site.clock,
        executes=[device_class], orders=True,
    )  # fmt: skip
    one = Life(site, controller=simulated.controller, devices={device: device_class}, ordered=ordered)

    def meanwhile(call: Call | None) -> None:
        site.clock.sleep(0.5)
        for child in children(site):
            if child.device in answers and not site.outcome(child):
                site.acknowledge(child, answers[child.device])
        one._pause()

    one.meanwhile = meanwhile
    return one


@pytest.mark.parametrize(
    ("name", "before", "answers", "ordered", "outcome", "text"),
    [
        ("On", ["OFF", "OFF"], ["COMPLETED"] * 2, ["On", "On"], "COMPLETED", ""),
        ("On", ["ON", "OFF"], ["", "COMPLETED"], ["On"], "COMPLETED", ""),
        ("On", ["ON", "ON"], ["", ""], [], "COMPLETED", ""),
        ("Off", ["ON", "FAULT"], ["COMPLETED"] * 2, ["Off", "Off"], "COMPLETED", ""),
        ("Standby", ["ON", "OFF"], ["COMPLETED", ""], ["Off"], "COMPLETED", ""),
        ("On", ["OFF"] * 2, ["COMPLETED", "REJECTED"], ["On", "On"], "FAILED", f"{SECOND}: REJECTED; 1 of 2 followed"),
        ("On", ["OFF", "OFF"], ["COMPLETED", ""], ["On", "On"], "FAILED", f"{SECOND}: TIMED_OUT no outcome in time"),
        ("Disable", ["ON", "ON"], ["", ""], [], "COMPLETED", ""),
    ],
)  # fmt: skip
def test_the_commands_of_sdp_go_on_to_the_subarrays_that_are_not_there_yet(
    site: Site, name: str, before: list[str], answers: list[str], ordered: list[str], outcome: str, text: str
) -> None:
    """One outcome says which did not follow; then SDP keeps its State, and the command can be given again."""
    for device, state in zip(DEVICES, before, strict=True):
        site.say(device, State=state)
    site.say(SDP, State="OFF" if name == "On" else "ON")
    message = site.send(name, SDP)
    cascade(site, {device: answer for device, answer in zip((FIRST, SECOND), answers, strict=True) if answer}).work()
    found = site.outcomes(message)[0]
    assert found.status == outcome
    assert text in found.text
    assert [child.command for child in children(site)] == ordered
    assert (len(site.reported("State", SDP)) == 2) == (outcome == "COMPLETED")


@pytest.mark.parametrize(
    ("answer", "outcome", "text"),
    [
        ("COMPLETED", "COMPLETED", ""),
        ("FAILED", "FAILED", "mid-sdp/worker/01: FAILED; 0 of 1 followed"),
        ("", "FAILED", "mid-sdp/worker/01: TIMED_OUT no outcome in time"),
    ],
)
def test_a_processing_controller_executes_its_order_and_gives_one_to_its_worker(
    site: Site, answer: str, outcome: str, text: str
) -> None:
    argument = {"interface": "https://schema.skao.int/ska-sdp-prepare/0.1", **ARGUMENT}
    order = site.send("Prepare", PROCESSING, argument=argument)
    one = cascade(site, {"mid-sdp/worker/01": answer} if answer else {}, PROCESSING, PROCESSING_CLASS, ORDERED)
    one.work()
    found = site.outcomes(order)[0]
    assert found.status == outcome
    assert text in found.text
    assert found.time < order.deadline
    (child,) = children(site)
    assert (child.command, child.argument, child.parent) == ("Load", argument, order.id)

"""Reservations from the topic to what SdpSubarray and SdpMaster show, on the simulation's brokers."""

import json
import random
from itertools import groupby
from typing import Any

import pytest

from facade.flows.reservations import cli
from facade.flows.reservations import ledger as ledgers
from facade.flows.reservations.flow import MOST_SHOWN, readings
from facade.flows.reservations.ledger import MOST_NAMES_SHOWN, RESERVATIONS, STATES, ReservationLedger, read_ledger
from facade.flows.reservations.source import ReservationSource
from facade.kernel.bus.port import Record
from facade.kernel.clock import ManualClock
from facade.kernel.outcome import USED, Suppressed
from facade.sdp.device_state import StateMessage, state_record
from tests.support.commanding import DeviceServers
from tests.support.heaps import BASE_US

FIRST, SECOND, MASTER = "mid-sdp/subarray/01", "mid-sdp/subarray/02", "mid-sdp/control/0"


class Bench(DeviceServers):
    """A controller that reserves, and the device servers that show it."""

    def __init__(self) -> None:
        super().__init__(
            subarray={"SdpSubarray": [FIRST, SECOND]}, control={"SdpMaster": [MASTER], "SdpBus": ["mid-sdp/bus/0"]}
        )
        self.source = ReservationSource("subarray-controller", self.broker.append, self.clock)

    def cycle(self, times: int = 9) -> None:
        super().cycle(times)

    def reserve(self, subarray: int, *names: str, seconds: float = 3600.0, **more: Any) -> Any:
        more = {"state": "GRANTED", **more}
        return self.source.reserve(
            f"subarray-{subarray:02d}/receptors", subarray, "receptors", names, seconds=seconds, **more
        )

    def report(self, device: str, resources: dict[str, Any]) -> None:
        """Report the resources of a subarray, as its controller does."""
        time = self.clock.now_us()
        message = StateMessage(
            device=device, attribute="resources", value=json.dumps(resources), time=time, origin="controller"
        )
        self.broker.append(state_record(message))

    def shown(self, name: str, device: str = FIRST) -> Any:
        return self.shows(name, device)

    def counts(self, device: str = FIRST) -> tuple[int, ...]:
        return tuple(self.shown(f"reservations{name}", device) for name in ("Requested", "Held", "Refused"))

    def alerts(self, condition: str) -> list[tuple[str, str]]:
        """Return source and state of the alerts about a condition; what says the same again is left out."""
        found = [json.loads(one.value or b"{}") for one in self.broker.read("alerts")]
        said = [(one["source"], one["state"]) for one in found if one["condition"] == condition]
        return [one for one, _ in groupby(said)]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_who_holds_what_is_shown_and_is_back_after_a_kill(bench: Bench) -> None:
    at = bench.clock.now_us()
    bench.reserve(1, "SKA001", "SKA036")
    wanted = bench.source.reserve(
        "pb-test-00001/nodes", 1, "nodes", seconds=7200.0, quantity=4.0, pb_id="pb-test-00001", exclusive=False
    )
    bench.reserve(2, "SKA100", seconds=1800.0)
    bench.cycle()
    for _ in range(2):
        assert (bench.counts(), bench.counts(SECOND), bench.counts(MASTER)) == ((1, 1, 0), (0, 1, 0), (1, 2, 0))
        first, second = map(json.loads, bench.shown("reservations"))
        assert (first["owner"], first["names"], first["quantity"]) == ("subarray/01", ["SKA001", "SKA036"], 2)
        assert (second["owner"], second["state"], second["quantity"]) == ("pb-test-00001", "REQUESTED", 4.0)
        assert bench.shown("nextReservationExpiry") == pytest.approx(at / 1e6 + 3600.0)
        assert bench.shown("nextReservationExpiryUtc") == first["expires"]
        assert bench.shown("nextReservationExpiry", MASTER) == pytest.approx(at / 1e6 + 1800.0)
        assert (bench.shown("reservationConflicts"), bench.shown("conflictingReservations", MASTER)) == (0, ())
        assert bench.sink.shown[FIRST, "reservationsHeld"].time == at
        bench.start()
    manager = ReservationSource("platform-services", bench.broker.append, bench.clock)
    manager.refuse(wanted, "no nodes are free")
    bench.cycle()
    assert bench.counts() == (0, 1, 1)
    assert json.loads(bench.shown("reservations")[1])["text"] == "no nodes are free"


def test_a_reservation_ends_by_itself_unless_it_is_renewed(bench: Bench) -> None:
    """In silence, by the wall clock; the reading has the time of the expiry. A late renewal holds from then on."""
    one = bench.reserve(1, "SKA001", seconds=20.0)
    bench.cycle(2)
    bench.clock.sleep(10.0)
    one = bench.source.renew(one, seconds=20.0)
    for past, held in ((10.0, 1), (10.0, 0)):
        bench.cycle(2)
        bench.clock.sleep(past)
        bench.cycle(2)
        assert (bench.counts(), bench.counts(MASTER)) == ((0, held, 0), (0, held, 0))
    assert bench.sink.shown[FIRST, "reservationsHeld"].time == one.expires
    assert (bench.shown("reservations"), bench.shown("nextReservationExpiry")) == ((), 0.0)
    assert bench.shown("nextReservationExpiryUtc") == ""
    bench.start()
    assert bench.counts() == (0, 0, 0)
    one = bench.source.renew(one, seconds=60.0)
    bench.cycle(2)
    assert bench.counts() == (0, 1, 0)
    bench.clock.sleep(1.0)
    one = bench.source.release(one)
    bench.cycle(2)
    assert (bench.counts(), bench.sink.shown[FIRST, "reservationsHeld"].time) == ((0, 0, 0), one.time)


def test_a_conflict_is_an_alarm_until_one_owner_releases(bench: Bench) -> None:
    bench.reserve(1, "SKA001", "SKA002")
    two = bench.reserve(2, "SKA002", "SKA003")
    bench.cycle()
    assert bench.alerts("reservationConflict") == [("sdp-facade/reservations", "ACTIVE")]
    for _ in range(2):
        for device in (FIRST, SECOND, MASTER):
            assert bench.shown("reservationConflicts", device) == 1
            (conflict,) = map(json.loads, bench.shown("conflictingReservations", device))
            assert (conflict["kind"], conflict["name"]) == ("receptors", "SKA002")
            assert {held["owner"] for held in conflict["reservations"]} == {"subarray/01", "subarray/02"}
        said = "receptors SKA002 is reserved by subarray/01 and subarray/02 at the same time"
        assert any(said in line for line in bench.shown("healthInfo", MASTER))
        bench.start()
    bench.source.release(two)
    bench.cycle(20)
    assert bench.alerts("reservationConflict")[-1] == ("sdp-facade/reservations", "CLEARED")
    assert bench.shown("reservationConflicts", SECOND) == 0


def test_resources_in_use_whose_reservation_has_expired_are_an_alarm(bench: Bench) -> None:
    one = bench.reserve(1, "SKA001", "SKA002", seconds=30.0)
    bench.report(FIRST, {"receptors": ["SKA001"], "receive_nodes": 4})
    bench.report(SECOND, {"receptors": ["SKA009"]})
    bench.cycle()
    assert bench.alerts("reservationExpired") == []
    bench.clock.sleep(30.0)
    bench.cycle()
    assert bench.alerts("reservationExpired") == [("sdp-facade/subarray/01", "ACTIVE")]
    said = "subarray 01 has receptors SKA001, whose reservation has expired"
    assert any(said in line for line in bench.shown("healthInfo", MASTER))
    bench.start()
    assert bench.alerts("reservationExpired") == [("sdp-facade/subarray/01", "ACTIVE")]
    one = bench.source.renew(one, seconds=30.0)
    bench.cycle(20)
    assert bench.alerts("reservationExpired")[-1] == ("sdp-facade/subarray/01", "CLEARED")
    bench.clock.sleep(30.0)
    bench.cycle()
    assert bench.alerts("reservationExpired")[-1] == ("sdp-facade/subarray/01", "ACTIVE")
    bench.report(FIRST, {})
    bench.cycle(20)
    assert bench.alerts("reservationExpired")[-1] == ("sdp-facade/subarray/01", "CLEARED")


GOOD = {
    **{"schema": "reservation/1", "id": "a/1", "kind": "receptors", "names": ["SKA001"], "subarray": 1},
    **{"state": "GRANTED", "expires": BASE_US + 10**10, "sequence": 1, "time": BASE_US},
}


def test_a_source_refuses_what_nobody_could_read(bench: Bench) -> None:
    with pytest.raises(ValueError, match=r"reservation 'subarray-01/receptors': \$\.state"):
        bench.reserve(1, state="EXPIRED")
    with pytest.raises(ValueError, match=r"\$\.expires: expected at least"):
        bench.reserve(1, seconds=-1.0)
    assert bench.broker.read(RESERVATIONS) == []


def test_each_record_of_a_source_is_newer_than_the_one_before(bench: Bench) -> None:
    one = bench.reserve(1, "SKA001", state="REQUESTED")
    bench.clock.sleep(-5.0)
    manager = ReservationSource("platform-services", bench.broker.append, bench.clock)
    one = manager.grant(one)
    one = bench.source.renew(one, seconds=100.0)
    one = bench.source.release(one)
    sequences = [json.loads(record.value or b"")["sequence"] for record in bench.broker.read(RESERVATIONS)]
    assert sequences == sorted(set(sequences))
    bench.source.remove(one.id)
    assert bench.broker.read(RESERVATIONS)[-1].value is None


NOW = BASE_US


def told(number: int, state: str = "GRANTED", sequence: int = 1, **more: Any) -> Record:
    name = f"a/{number}"
    value = {**GOOD, "id": name, "names": [f"SKA{number:03d}"], "state": state, "sequence": sequence, **more}
    return Record(topic=RESERVATIONS, key=name.encode(), value=json.dumps(value).encode())


def naive_conflicts(records: list[dict[str, Any]], now: int) -> set[tuple[str, str]]:
    """Return the resources of which two reservations conflict, by comparing each with each."""
    found = set()
    held = [one for one in records if one["state"] == "GRANTED" and one["expires"] > now]
    for a in held:
        for b in held:
            same = a["subarray"] == b["subarray"]
            blocks = {a.get("pb_id"), b.get("pb_id")} - {None}
            apart = a["id"] != b["id"] and (not same or len(blocks) == 2)
            if apart and (a.get("exclusive", True) or b.get("exclusive", True)):
                found |= {(a["kind"], name) for name in set(a["names"]) & set(b["names"]) if a["kind"] == b["kind"]}
    return found


@pytest.mark.parametrize("seed", range(20))
def test_any_history_gives_what_the_newest_records_say(seed: int) -> None:
    """Who holds what, and who conflicts with whom; see `test_projection_contract` for repeats and compaction."""
    rng = random.Random(seed)
    history: list[Record] = []
    for sequence in range(1, 300):
        record = told(
            rng.randrange(15),
            rng.choice(STATES),
            sequence,
            names=[f"SKA{rng.randrange(8):03d}" for _ in range(rng.randrange(4))],
            subarray=rng.choice((1, 2)),
            expires=NOW + rng.randrange(100),
            exclusive=rng.random() < 0.5,
            kind=rng.choice(("receptors", "receptors", "nodes")),
            **({"pb_id": f"pb-{rng.randrange(3)}"} if rng.random() < 0.5 else {}),
        )
        history.append(record)
        if rng.random() < 0.1:
            history.append(Record(topic=RESERVATIONS, key=b"a/%d" % rng.randrange(15), value=None))
    newest = {one.key: one for one in history}
    live = ReservationLedger(lambda: NOW)
    for record in history:
        live.fold(record, count=True)
    left = [json.loads(one.value) for one in newest.values() if one.value is not None]
    for now in (NOW, NOW + 50, NOW + 100):
        wanted = {one["id"] for one in left if one["state"] != "RELEASED" and one["expires"] > now}
        for ledger in (live, read_ledger(newest.values(), NOW)):
            assert {one.id for one in ledger.current(now)} == wanted
            assert {one.resource for one in ledger.conflicts(now)} == naive_conflicts(left, now)
            for name in (f"SKA{number:03d}" for number in range(8)):
                assert {one.id for one in ledger.holders("receptors", name, now)} == {
                    one["id"]
                    for one in left
                    if (one["kind"], one["state"]) == ("receptors", "GRANTED")
                    and one["expires"] > now
                    and name in one["names"]
                }
    assert live._names == sum(len(one["names"]) for one in left if one["state"] != "RELEASED")
    for key in newest:
        live.fold(Record(topic=RESERVATIONS, key=key, value=None), count=True)
    assert not any((live._known, live._released, live._granted, live._contested, live._names))


def test_memory_is_bounded_and_expired_ones_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledgers, "MOST", 100)
    monkeypatch.setattr(ledgers, "MOST_NAMES", 300)
    monkeypatch.setattr(ledgers, "MOST_RELEASED", 50)
    clock = ManualClock(NOW / 1e6)
    ledger = ReservationLedger(lambda: round(clock.now() * 1e6))
    for number in range(100):
        ledger.fold(told(number, expires=NOW + 10 + number), count=True)
    assert ledger.fold(told(200), count=True) == Suppressed("too-many")
    assert ledger.left_out(NOW) == 1
    assert ledger.fold(told(1, sequence=2), count=True) is USED, "one that is known is renewed all the same"
    clock.sleep(20e-6)
    assert ledger.fold(told(200), count=True) is USED
    assert len([*ledger.all()]) == 91
    assert ledger.left_out(NOW + 20) == 0, "it is shown now"
    assert ledger.fold(told(201, names=["x"] * 300), count=True) == Suppressed("too-many")
    assert ledger.fold(told(200, sequence=2, names=["x"] * 300), count=True) == Suppressed("too-many")
    assert ledger.left_out(NOW + 20) == 2
    assert ledger.left_out(GOOD["expires"]) == 0, "both have expired"
    for number in range(300):
        assert ledger.fold(told(number, "RELEASED", 3), count=True) is USED
    assert (ledger.left_out(NOW + 20), len(ledger._left_out)) == (0, 0)
    assert (len(ledger._released), len([*ledger.all()]), ledger._names) == (50, 0, 0)


def test_a_person_sees_who_holds_what_until_when(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    later = {"expires": NOW * 5}
    records = [
        told(1, **later, text="for \x1b[2Jcommissioning"),
        told(2, "REQUESTED", subarray=2, names=[], quantity=1e12, unit="B", kind="storage", **later),
        told(3, names=["SKA001"], subarray=2, **later),
        told(4),
        Record(topic=RESERVATIONS, key=b"a/5", value=b"junk"),
    ]
    monkeypatch.setattr(
        "facade.kernel.bus.kafka.bus.KafkaBus.read_all", lambda _, topic: records if topic == RESERVATIONS else []
    )
    monkeypatch.setattr(cli, "SystemClock", lambda: ManualClock(NOW / 1e6 + 20_000))
    cli.list_reservations()
    said, counted = capsys.readouterr()
    first, *lines = said.splitlines()
    assert first.split() == "owner kind resources state expires id text".split()
    assert [line.split()[0] for line in lines] == ["subarray/01", "subarray/02", "subarray/02", "conflict:"]
    assert "1e+12 B" in lines[2]
    assert "\x1b[2J" not in said
    assert lines[3] == "conflict: receptors SKA001 is reserved by subarray/01 and subarray/02"
    assert "3 reservations, 1 conflicts" in counted
    assert "1 records could not be read" in counted
    cli.list_reservations(subarray=[1], kind=["receptors"], all_=True)
    assert "GRANTED, expired" in capsys.readouterr().out
    monkeypatch.setattr(ledgers, "MOST", 2)
    cli.list_reservations()
    assert "1 more are not shown" in capsys.readouterr().err


def test_what_is_shown_is_bounded() -> None:
    names = [f"n{number}" for number in range(1000)]
    ledger = read_ledger([told(number, names=names, subarray=1 + number % 16) for number in range(99)], NOW)
    shown: dict[str, Any] = {name: one.value for name, one in readings(ledger, NOW).items()}
    assert (len(shown["reservations"]), shown["reservationsHeld"]) == (MOST_SHOWN, 99)
    assert len(json.loads(shown["reservations"][0])["names"]) == MOST_NAMES_SHOWN
    assert (len(shown["conflictingReservations"]), shown["reservationConflicts"]) == (MOST_SHOWN, 1000)
    assert json.loads(shown["reservations"][0])["quantity"] == 1000

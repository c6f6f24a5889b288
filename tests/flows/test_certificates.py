"""Certificates that end soon raise an alarm: those in files, and those that servers show."""

import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import create_server

import pytest

from facade.flows.overview.certificates import Certificates
from facade.kernel.clock import DAY, ManualClock, Time, as_time, utc_seconds
from facade.kernel.config import Settings
from tests.support.server_in_memory import serve

KEY = "certificateEnds"
BROKERS: frozenset[str] = frozenset()


def certificate(folder: Path, name: str, days: int) -> Path:
    """Make a certificate with its key in one file."""
    file, key = folder / f"{name}.pem", folder / f"{name}.key"
    argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    argv += ["-subj", f"/CN={name}", "-days", str(days), "-keyout", str(key), "-out", str(file)]
    subprocess.run(argv, check=True, capture_output=True)
    file.write_text(file.read_text() + key.read_text())
    return file


def end_of(file: Path) -> Time:
    """Return the end of a certificate as openssl knows it."""
    argv = ["openssl", "x509", "-in", str(file), "-noout", "-enddate"]
    said = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
    return as_time(ssl.cert_time_to_seconds(said.strip().partition("=")[2]))


@contextmanager
def shown(file: Path) -> Iterator[str]:
    """Serve a certificate, and return where."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)

    def answer() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            try:
                context.wrap_socket(connection, server_side=True).close()
            except OSError:
                connection.close()

    with create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=answer, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("days", [20, 9000, 20000])  # the last one is after 2049, in the other form of a time
def test_the_end_of_a_file_is_the_one_that_openssl_reads(tmp_path: Path, days: int) -> None:
    file = certificate(tmp_path, "own", days)
    watched = Certificates(Settings(certificates=str(file)), lambda: BROKERS, ManualClock())
    watched.step()
    end = end_of(file)
    assert not watched.find(Time(end - 30 * DAY))
    ((key, fault),) = watched.find(Time(end - 30 * DAY + 1)).items()
    assert key == (KEY, f"sdp-facade/certificate{file}")
    assert (fault.severity, f"ends at {utc_seconds(end)}" in fault.text) == ("WARNING", True)
    assert watched.find(Time(end - 6 * DAY))[key].severity == "ALARM"
    assert " ended at " in watched.find(Time(end + 1))[key].text


def test_of_several_authorities_the_last_counts_and_of_a_chain_the_first(tmp_path: Path) -> None:
    near, far = certificate(tmp_path, "near", 10), certificate(tmp_path, "far", 1000)
    both = tmp_path / "both.pem"
    both.write_text(near.read_text() + far.read_text())
    now = Time(end_of(near) - DAY)
    for name, found in (("ssl.ca.location", 0), ("ssl.certificate.location", 1)):
        watched = Certificates(Settings(kafka={name: str(both)}), lambda: BROKERS, ManualClock())
        watched.step()
        assert len(watched.find(now)) == found, name


def test_brokers_show_theirs_which_are_read_again_after_an_hour(tmp_path: Path) -> None:
    old, new, clock = certificate(tmp_path, "old", 10), certificate(tmp_path, "new", 900), ManualClock()
    now = Time(end_of(old) - DAY)
    with shown(old) as place:
        known = frozenset[str]()
        watched = Certificates(Settings(kafka={"security.protocol": "SASL_SSL"}), lambda: known, clock)
        key = KEY, f"sdp-facade/certificate/{place}"
        watched.step()
        assert not watched.judges(key), "no broker is known yet"
        known = frozenset({place})
        assert not watched.judges(key), "it was not read yet"
        watched.step()
        assert watched.judges(key)
        assert watched.find(now).keys() == {key}
    clock.sleep(3600)
    watched.step()
    assert watched.find(now).keys() == {key}, "a broker that is away keeps its alarm"
    known = frozenset({str(new)})  # as a file, which no port is needed for
    watched.step()
    assert watched.find(now).keys() == {key}, "it may only restart"
    clock.sleep(3600)
    watched.step()
    assert not watched.find(now)
    assert watched.judges(key), "nobody uses it any more"


def test_without_encryption_no_broker_is_asked() -> None:
    watched = Certificates(Settings(), lambda: frozenset({"127.0.0.1:1"}), ManualClock())
    watched.step()
    assert watched.judges((KEY, "sdp-facade/certificate/127.0.0.1:1"))


def test_what_cannot_be_read_is_told_and_does_not_keep_others_from_being_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "odd.pem").write_text("no certificate")
    own = certificate(tmp_path, "own", 5)
    names = f"{tmp_path}/none.pem, {tmp_path}/odd.pem, 127.0.0.1:1, {own}"
    watched = Certificates(Settings(certificates=names), lambda: BROKERS, ManualClock())
    watched.step()
    assert [key[1] for key in watched.find(Time(end_of(own) - DAY))] == [f"sdp-facade/certificate{own}"]
    assert len(caplog.messages) == 3
    assert all("its end is not watched" in one for one in caplog.messages)


def test_a_device_server_raises_the_alarm_and_stays_healthy(tmp_path: Path) -> None:
    own = certificate(tmp_path, "own", 3000)
    control = serve("control", certificates=str(own))
    control.clock.sleep((end_of(own) - DAY) / 1e6 - control.clock.now())
    (watched,) = [
        one for run in control.server.threads if isinstance(one := getattr(run, "__self__", None), Certificates)
    ]
    watched.step()  # as its thread would
    control.run(30)
    raised = [one for one in control.log.records("alerts") if b"certificateEnds" in (one.key or b"")]
    assert raised
    reasons = control.server.publisher.last["mid-sdp/control/0"]["healthInfo"].value
    assert all("certificate" not in text for text in reasons)

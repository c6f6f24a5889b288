"""The device classes: what they do beyond showing, which is little."""

import tango

from devices.base import FacadeDevice, device_class
from facade.control.admin_mode import allowed, to_record
from facade.errors import BusError
from facade.icd.model import Icd

WRITE_TIMEOUT = 0.4
"""Longest wait for the bus in a Tango call [s]: TM's clients give a call 0.5 s."""


class SdpIngestNode(FacadeDevice):
    """One ingest node."""


class SdpBus(FacadeDevice):
    """The message bus."""


class SdpMaster(FacadeDevice):
    """SDP as a whole."""

    def write_adminMode(self, value: int) -> None:  # noqa: N802 - Tango's name
        """Put the mode on the bus; it holds once all in-sync replicas have it.

        Raises
        ------
        tango.DevFailed
            The control model forbids the move, or the bus did not confirm it in time.
        """
        labels = self.icd.enums["AdminMode"]
        service, device = self.service, self.get_name().lower()
        if service is None or service.modes is None or not service.pump.has_read("state"):
            raise refusal("the bus was not reached yet, so the present mode is not known; try again later", "adminMode")
        current, wanted = service.modes.modes[device], labels[value]
        if not allowed(current, wanted):
            raise refusal(
                f"from {current} the SKA control model does not lead to {wanted}; OFFLINE is between", "adminMode"
            )
        now = self.clock.now()
        record = to_record(device, wanted, now=now, origin=device)
        try:
            service.send_durably(record, WRITE_TIMEOUT)
        except BusError as error:
            raise refusal(f"adminMode {wanted} was not confirmed: {error}", "adminMode") from error
        # The next call must find it, not only one that comes after the record has come back.
        self.show("adminMode", service.modes.set(device, wanted, now))


def refusal(what: str, where: str) -> tango.DevFailed:
    """Make the one form in which a Tango call fails: reason, what was wrong, where."""
    try:
        tango.Except.throw_exception("API_CommandFailed", what, where, tango.ErrSeverity.ERR)
    except tango.DevFailed as failed:
        return failed
    raise AssertionError("unreachable: throw_exception raises")


def device_classes(icd: Icd) -> list[type[FacadeDevice]]:
    """Make all Tango classes."""
    return [device_class(icd, base) for base in (SdpMaster, SdpBus, SdpIngestNode)]

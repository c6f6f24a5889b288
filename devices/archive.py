"""The device of an archive worker, which also gives orders to the replay of its deployment."""

from typing import Any

import tango

from devices.kernel.queries import QueriedDevice, as_tango, refusal
from facade.archive.flow import ReplayControl
from facade.kernel.errors import BusError


class SdpArchive(QueriedDevice):
    """An archive worker, and the control of the replay."""

    def query_Pause(self) -> str:  # noqa: N802 - Tango's name
        """Pause the replay."""
        return self._give("Pause")

    def query_Resume(self) -> str:  # noqa: N802 - Tango's name
        """Resume the replay."""
        return self._give("Resume")

    def query_Step(self, seconds: int) -> str:  # noqa: N802 - Tango's name
        """Play some seconds of the archive, then pause."""
        return self._give("Step", seconds=seconds)

    def query_Seek(self, time: str) -> str:  # noqa: N802 - Tango's name
        """Play up to a time without waiting."""
        return self._give("Seek", time=time)

    def _give(self, command: str, **more: Any) -> str:
        where = f"SdpArchive.{command}"
        control = None if self.service is None else self.service.find(ReplayControl)
        if control is None:
            raise refusal("the device server is still starting; try again", where)
        with tango.AutoTangoAllowThreads(self), as_tango(where):
            try:
                return control.give(command, **more)
            except BusError as error:
                raise refusal(str(error), where) from error

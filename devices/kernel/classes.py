"""The Tango classes of a device server: those of the interface, made when the server has devices of them.

`devices/kernel/mapping.py` makes labels, units and limits from `schemas/icd/`.
"""

from collections.abc import Iterable

from devices.kernel.base import FacadeDevice, device_class
from facade.kernel.errors import IcdError
from facade.kernel.icd.model import Icd
from facade.kernel.manifest import load, manifests


def device_classes(icd: Icd, wanted: Iterable[str] | None = None) -> list[type[FacadeDevice]]:
    """Make Tango classes.

    Parameters
    ----------
    wanted
        Names of device classes; None: all of the interface.

    Raises
    ------
    IcdError
        A class is in the interface but in no manifest, or vice versa.
    """
    bases = {name: base for manifest in manifests() for name, base in manifest.device_classes.items()}
    if odd := sorted(bases.keys() ^ icd.classes.keys()):
        raise IcdError(f"device classes {odd}: expected each in schemas/icd and in the manifest of one flow")
    return [device_class(icd, name, load(bases[name])) for name in (icd.classes if wanted is None else wanted)]

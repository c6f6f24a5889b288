"""Registers the devices of a deployment in the Tango database, through dsconfig."""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from facade.kernel.config import Settings
from facade.kernel.errors import InfraError
from facade.kernel.icd.model import Icd
from facade.kernel.instances import registration
from facade.kernel.names import SERVER

_DONE = (0, 2)
"""Exit codes of json2tango: nothing had to change; the changes were written."""


def register(icd: Icd, settings: Settings, tango_host: str) -> int:
    """Write the devices into the Tango database; devices of other servers stay unchanged.

    Returns
    -------
    int
        Number of registered devices.

    Raises
    ------
    InfraError
        The database does not answer or refuses.
    """
    content = registration(icd, settings)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sdp.json"
        path.write_text(json.dumps(content))
        done = subprocess.run(
            [sys.executable, "-m", "dsconfig.json2tango", "--write", "--update", "--sleep", "0", str(path)],
            env={**os.environ, "TANGO_HOST": tango_host, "TMPDIR": folder},  # json2tango leaves files there
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    if done.returncode not in _DONE:
        said = done.stderr or done.stdout
        reason = "; ".join(dict.fromkeys(re.findall(r"desc = (.*)", said))) or said.strip()[-500:]
        raise InfraError(
            f"the devices could not be registered: expected a Tango database at TANGO_HOST={tango_host}, got: {reason}"
        )
    return sum(len(names) for servers in content["servers"][SERVER].values() for names in servers.values())

"""The operator's page: Tango events in a browser, and operators' actions from it.

`feed` follows attributes and numbers each change; `doors` decides on requests; `app` answers them; `static/` is the
page. The server is a Tango client like any other: a deployment does not notice whether it runs.
"""

from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Final

STATIC: Final = Path(str(files(__name__))) / "static"


def how_to_install() -> str:
    """Return the installation command of missing packages; empty text: all are installed."""
    if not all(map(find_spec, ("joserfc", "starlette", "uvicorn"))):
        return "pip install 'sdp-tango-facade[web]'"
    return "" if (STATIC / "vendor").is_dir() else "scripts/bootstrap web"

"""The bus side of the SDP Tango facade: everything except Tango."""

from importlib import import_module


def __getattr__(name: str) -> str:
    # Looked up at its first use: the lookup takes longer than the other imports of some processes.
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    metadata = import_module("importlib.metadata")
    try:
        return str(metadata.version("sdp-tango-facade"))
    except metadata.PackageNotFoundError:  # a source tree that was never installed
        return "0+unknown"

"""The bus side of the SDP Tango facade: everything but Tango itself."""

from importlib import import_module


def __getattr__(name: str) -> str:
    # Looked up when somebody asks: it takes longer than importing all else of some processes.
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    metadata = import_module("importlib.metadata")
    try:
        return str(metadata.version("sdp-tango-facade"))
    except metadata.PackageNotFoundError:  # a source tree that was never installed
        return "0+unknown"

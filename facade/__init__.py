"""The bus side of the SDP Tango facade: everything but Tango itself."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("sdp-tango-facade")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"

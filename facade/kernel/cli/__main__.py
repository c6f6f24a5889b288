"""The executable of the program."""

import sys

import facade
from facade.kernel.errors import ConfigError


def main() -> None:
    """Run the command line."""
    if sys.argv[1:] == ["--version"]:  # needs no import, and scripts ask it first
        print(facade.__version__)
        return
    try:
        from facade.kernel.cli.app import run
    except ConfigError as error:  # the names of the facility are read with the import
        sys.exit(f"error: {error}")
    run()


if __name__ == "__main__":
    main()

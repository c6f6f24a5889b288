"""The executable of the program."""

import sys

import facade


def main() -> None:
    """Run the command line."""
    if sys.argv[1:] == ["--version"]:  # needs no import, and scripts ask it first
        print(facade.__version__)
        return
    from facade.kernel.cli.app import run

    run()


if __name__ == "__main__":
    main()

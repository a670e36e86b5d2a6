"""The command line, for `python -m coopstreams` and the script `coopstreams`."""

import sys


def main() -> None:
    """Run a command. `run` handles SIGTERM and Ctrl-C from here on, before imports; the others end as usual."""
    if sys.argv[1:2] == ["run"]:
        from coopstreams.common.interrupts import listen

        listen()
    from coopstreams.commands.cli import main as command_line

    command_line()


if __name__ == "__main__":
    main()

"""The command line, for `python -m coopstreams` and the script `coopstreams`. Signals are handled before imports."""

import sys


def main() -> None:
    """Run a command. `run` handles SIGTERM and Ctrl-C from here on and is imported alone; the others end as usual."""
    if sys.argv[1:2] == ["run"]:
        from coopstreams.common.interrupts import listen

        listen()
        from coopstreams.commands.run import main as run

        run()
    else:
        from coopstreams.commands.cli import main as command_line

        command_line()


if __name__ == "__main__":
    main()

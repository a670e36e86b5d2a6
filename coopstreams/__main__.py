"""The entry point of the command line, for `python -m coopstreams` and the script
`coopstreams`.
"""

import signal
import sys


def main() -> None:
    """Run the command of the command line.

    `run` handles SIGTERM and Ctrl-C from here on, before imports. Ctrl-C ends the other
    commands at once and without a traceback while they are imported.
    """
    if sys.argv[1:2] == ["run"]:
        from coopstreams.common.interrupts import listen

        listen()
    elif signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from coopstreams.commands.cli import main as command_line

    command_line()


if __name__ == "__main__":
    main()

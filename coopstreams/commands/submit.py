"""The main file for spark-submit: `spark-submit … submit.py backfill app.py …` is `coopstreams backfill app.py …` on a
cluster.

`coopstreams pack` prints the whole command.
"""

import os
import sys


def main() -> None:
    """Run the command line in the session that spark-submit was told of."""
    here = os.path.dirname(os.path.abspath(__file__))
    # The folder of a main file is on the path: here that of a package's modules. It is the folder of the package that
    # is wanted.
    above = os.path.dirname(os.path.dirname(here))
    sys.path[:] = [above if os.path.abspath(folder) == here else folder for folder in sys.path]
    from coopstreams.commands.cli import main as command_line

    command_line()


if __name__ == "__main__":
    main()

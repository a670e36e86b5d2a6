"""The main file for spark-submit: `spark-submit … submit.py backfill app.py …` runs
`coopstreams backfill app.py …`.

`coopstreams pack` prints the whole command line.
"""

import os
import sys


def main() -> None:
    """Run the command line within spark-submit."""
    here = os.path.dirname(os.path.abspath(__file__))
    # Python puts the folder of the main file on the path, which is inside the package.
    # Replace it by the folder that has the package.
    above = os.path.dirname(os.path.dirname(here))
    sys.path[:] = [
        above if os.path.abspath(folder) == here else folder for folder in sys.path
    ]
    from coopstreams.commands.cli import main as command_line

    command_line()


if __name__ == "__main__":
    main()

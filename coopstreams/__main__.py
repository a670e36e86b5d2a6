"""`python -m coopstreams`: the command line, without depending on where scripts are installed."""

from coopstreams.cli import main

main()

"""The whole command line, for tests that run a command in their own process."""

from coopstreams.commands.cli import command_line

app = command_line()

"""The supervisor of worker processes, and what a worker reports to it."""

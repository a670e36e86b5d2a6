"""The supervisor of worker processes, and the reports of a worker to it."""

"""The supervisor of worker processes, and what a worker tells it."""

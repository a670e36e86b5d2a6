"""The consumer group: membership, assignment of tasks, requests to its coordinator."""

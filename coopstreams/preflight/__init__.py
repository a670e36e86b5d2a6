"""Checks before an application starts: topics, settings, changes of the topology."""

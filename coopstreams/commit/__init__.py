"""Commits and positions of a group: what is done, by partition and key range."""

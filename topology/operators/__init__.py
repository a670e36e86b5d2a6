"""Generates the code of each kind of node, and what that code calls at run time."""

"""Compiles sub-topologies to programs, which tasks bind and run."""

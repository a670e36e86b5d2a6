"""Opens tasks: positions, restores of their stores, sessions of their sinks."""

"""Where keyed state lives: stores, their engines, changelog restores, snapshots."""

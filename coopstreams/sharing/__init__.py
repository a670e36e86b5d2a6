"""Sub-topologies whose records a share group delivers, in any order."""

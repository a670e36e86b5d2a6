"""Folds sub-topologies of a backfill in Spark SQL: what can be folded, the frames that fold it, and its rows."""

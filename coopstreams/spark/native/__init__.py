"""Folds sub-topologies of a backfill in Spark SQL: the translation, the frames, and
their rows.
"""

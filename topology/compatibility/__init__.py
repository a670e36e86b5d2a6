"""Compares versions of schemas: whether new code reads what old code wrote."""

"""What Spark's workers need: the user's modules, and reports of their progress."""

"""Stream threads, and the tasks that they run and commit."""

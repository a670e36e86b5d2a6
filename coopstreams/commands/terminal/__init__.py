"""Terminal output while a command runs: tables of processes, bars of tasks."""

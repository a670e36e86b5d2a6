"""Terminal output of commands: tables of processes, bars of tasks."""

"""What commands print while something runs: tables of processes, bars of tasks."""

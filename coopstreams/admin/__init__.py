"""Work on an application from outside: resets, rebuilds, dead letters, descriptions."""

"""What several packages use: settings, metrics, security, clock and threads."""

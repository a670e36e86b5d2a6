"""The HTTP server of queries: connections, and the fast path for keys."""

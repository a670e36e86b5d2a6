"""Queries of stores over HTTP: server, routing between instances, client."""

"""Runs the functions of asynchronous operators: event loop, threads, processes."""

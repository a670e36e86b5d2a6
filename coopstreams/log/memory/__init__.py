"""The log in memory, for tests and the test driver."""

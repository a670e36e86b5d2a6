"""External sinks that come with coopstreams: PostgreSQL."""

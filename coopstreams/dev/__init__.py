"""A local Kafka broker for development and tests: `coopstreams dev`."""

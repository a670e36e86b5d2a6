"""Nexmark: queries over the events of an auction, here and in Kafka Streams."""

"""Reads the records of topics into Spark, from Kafka or from tables."""

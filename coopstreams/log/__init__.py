"""The partitioned log: its interface, with Kafka and memory as implementations."""

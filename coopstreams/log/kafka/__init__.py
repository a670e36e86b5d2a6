"""The log in Kafka: readers, writers and admin requests over confluent-kafka."""

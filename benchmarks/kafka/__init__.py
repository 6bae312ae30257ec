"""A broker of Kafka, and what Spark needs to read from it."""

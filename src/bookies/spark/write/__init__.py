"""Writing with Spark: the sink and the offload tier."""

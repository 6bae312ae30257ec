"""Laboratory: simulator, chaos tests, benchmarks and the demo. The product does not import it."""

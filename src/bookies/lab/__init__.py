"""Laboratory: simulator, chaos tests, benchmarks and the demo. Product code does not import it."""

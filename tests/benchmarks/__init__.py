"""The benchmarks: their harness, what they compare, and their quick runs."""

"""`python -m benchmarks load`: a server under load, by its clients."""

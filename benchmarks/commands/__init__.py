"""What is typed after `python -m benchmarks`: a dataclass per benchmark, filled and then called. None loads torch."""

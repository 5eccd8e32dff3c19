"""What measures the figures of this repository: `python -m benchmarks NAME`, from its root. Not part of the package."""

"""Speed and memory of fedlib, beside the bare loop and other frameworks: ``python -m benchmarks``, ``make bench``."""

"""fedlib: federated learning on non-IID data, its measures, and a ledger of claims tested by stored runs."""

from fedlib import allocator

allocator.configure()  # must happen before torch makes its first tensor

__version__ = "0.1.0"

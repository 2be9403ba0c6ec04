"""What is measured, one file per quantity. Importing this package registers all measures."""

from fedlib.measures.base import Measure, Values
from fedlib.measures.weight_divergence import WeightDivergence

__all__ = ["Measure", "Values", "WeightDivergence"]

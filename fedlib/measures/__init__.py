"""What is measured, one file per quantity. Importing this package registers all measures."""

from fedlib.measures.base import Measure, Values
from fedlib.measures.client_trace import ClientTrace
from fedlib.measures.divergence_bound import DivergenceBound
from fedlib.measures.drift import Drift
from fedlib.measures.fairness import PerClient
from fedlib.measures.fine_tuning_curve import FineTuningCurve
from fedlib.measures.flatness import Flatness
from fedlib.measures.forgetting import Forgetting
from fedlib.measures.holdings import Holdings
from fedlib.measures.masking_penalty import MaskingPenalty
from fedlib.measures.poison_detection import PoisonDetection
from fedlib.measures.spectrum import Spectrum
from fedlib.measures.survival import Survival
from fedlib.measures.weight_divergence import WeightDivergence

__all__ = [
    "ClientTrace", "DivergenceBound", "Drift", "FineTuningCurve", "Flatness", "Forgetting", "Holdings",
    "MaskingPenalty", "Measure", "PerClient", "PoisonDetection", "Spectrum", "Survival", "Values", "WeightDivergence",
]  # fmt: skip

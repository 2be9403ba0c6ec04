"""Federated methods, one file each, under the paper's name. Importing this package registers all of them."""

from fedlib.methods.adaptive_sharing import AdaptiveSharing
from fedlib.methods.base import Client, Method, Server, State, published
from fedlib.methods.by_size import BySize
from fedlib.methods.condensation import Condensed
from fedlib.methods.copies import Copy
from fedlib.methods.curriculum import Curriculum
from fedlib.methods.data_sharing import DataSharing
from fedlib.methods.ditto import Ditto
from fedlib.methods.fed_distill import FedDistill
from fedlib.methods.fedavg import FedAvg
from fedlib.methods.fedavgm import FedAvgM
from fedlib.methods.fedcurv import FedCurv
from fedlib.methods.feddecorr import FedDecorr
from fedlib.methods.feddf import FedDF
from fedlib.methods.fednova import FedNova
from fedlib.methods.fedper import FedPer
from fedlib.methods.fedprox import FedProx
from fedlib.methods.fedrep import FedRep
from fedlib.methods.fine_tuning import FineTuning
from fedlib.methods.label_flips import LabelFlips
from fedlib.methods.lg_fedavg import LGFedAvg
from fedlib.methods.local_epochs import LocalEpochs
from fedlib.methods.magma import Magma
from fedlib.methods.moon import MOON
from fedlib.methods.number_formats import NumberFormats
from fedlib.methods.per_fedavg import PerFedAvg
from fedlib.methods.poison_check import PoisonCheck
from fedlib.methods.power_of_choice import PowerOfChoice
from fedlib.methods.private_layers import PrivateLayers
from fedlib.methods.private_sharing import Private
from fedlib.methods.prototypes import Prototypes
from fedlib.methods.quantised_sharing import Quantised
from fedlib.methods.scaffold import SCAFFOLD
from fedlib.methods.shared_set import SharedSet
from fedlib.methods.skip_update import SkipUpdate
from fedlib.methods.step_budget import StepBudget
from fedlib.methods.tiered_sharing import Alike, ByEMD, EqualBudget, Policy
from fedlib.methods.train_only import TrainOnly
from fedlib.methods.update_mask import UpdateMask

__all__ = [
    "MOON",
    "SCAFFOLD",
    "AdaptiveSharing",
    "Alike",
    "ByEMD",
    "BySize",
    "Client",
    "Condensed",
    "Copy",
    "Curriculum",
    "DataSharing",
    "Ditto",
    "EqualBudget",
    "FedAvg",
    "FedAvgM",
    "FedCurv",
    "FedDF",
    "FedDecorr",
    "FedDistill",
    "FedNova",
    "FedPer",
    "FedProx",
    "FedRep",
    "FineTuning",
    "LGFedAvg",
    "LabelFlips",
    "LocalEpochs",
    "Magma",
    "Method",
    "NumberFormats",
    "PerFedAvg",
    "PoisonCheck",
    "Policy",
    "PowerOfChoice",
    "Private",
    "PrivateLayers",
    "Prototypes",
    "Quantised",
    "Server",
    "SharedSet",
    "SkipUpdate",
    "State",
    "StepBudget",
    "TrainOnly",
    "UpdateMask",
    "published",
]

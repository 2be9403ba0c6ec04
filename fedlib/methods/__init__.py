"""Federated methods, one file each, under the paper's name. Importing this package registers all of them."""

from fedlib.methods.adaptive_sharing import AdaptiveSharing
from fedlib.methods.base import Client, Method, Server, State, published
from fedlib.methods.condensation import Condensed
from fedlib.methods.curriculum import Curriculum
from fedlib.methods.data_sharing import Alike, DataSharing, Policy
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
from fedlib.methods.lg_fedavg import LGFedAvg
from fedlib.methods.local_work import LocalEpochs, StepBudget
from fedlib.methods.masking import Magma, SkipUpdate, UpdateMask
from fedlib.methods.moon import MOON
from fedlib.methods.number_formats import NumberFormats
from fedlib.methods.per_fedavg import PerFedAvg
from fedlib.methods.poison_check import LabelFlips, PoisonCheck
from fedlib.methods.private_layers import PrivateLayers
from fedlib.methods.private_sharing import Private
from fedlib.methods.prototypes import Prototypes
from fedlib.methods.quantised_sharing import Quantised
from fedlib.methods.scaffold import SCAFFOLD
from fedlib.methods.selection import BySize, PowerOfChoice
from fedlib.methods.shared_set import Copy, SharedSet
from fedlib.methods.tiered_sharing import ByEMD, EqualBudget
from fedlib.methods.train_only import TrainOnly

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

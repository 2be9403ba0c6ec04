"""Federated methods, one file each, under the paper's name. Importing this package registers all of them."""

from fedlib.methods.base import Client, Method, Server, State
from fedlib.methods.curriculum import Curriculum
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
from fedlib.methods.private_layers import PrivateLayers
from fedlib.methods.scaffold import SCAFFOLD
from fedlib.methods.selection import BySize, PowerOfChoice
from fedlib.methods.train_only import TrainOnly

__all__ = [
    "MOON",
    "SCAFFOLD",
    "BySize",
    "Client",
    "Curriculum",
    "Ditto",
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
    "LocalEpochs",
    "Magma",
    "Method",
    "NumberFormats",
    "PerFedAvg",
    "PowerOfChoice",
    "PrivateLayers",
    "Server",
    "SkipUpdate",
    "State",
    "StepBudget",
    "TrainOnly",
    "UpdateMask",
]

"""Federated methods, one file each, under the paper's name. Importing this package registers all of them."""

from fedlib.methods.base import Client, Method, Server, State
from fedlib.methods.fedavg import FedAvg
from fedlib.methods.fedavgm import FedAvgM
from fedlib.methods.fedcurv import FedCurv
from fedlib.methods.feddecorr import FedDecorr
from fedlib.methods.fednova import FedNova
from fedlib.methods.fedprox import FedProx
from fedlib.methods.masking import Magma, SkipUpdate, UpdateMask
from fedlib.methods.moon import MOON
from fedlib.methods.scaffold import SCAFFOLD

__all__ = [
    "MOON",
    "SCAFFOLD",
    "Client",
    "FedAvg",
    "FedAvgM",
    "FedCurv",
    "FedDecorr",
    "FedNova",
    "FedProx",
    "Magma",
    "Method",
    "Server",
    "SkipUpdate",
    "State",
    "UpdateMask",
]

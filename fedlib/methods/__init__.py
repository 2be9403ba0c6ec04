"""Federated methods, one file each, under the paper's name. Importing this package registers all of them."""

from fedlib.methods.base import Client, Method, Server, State
from fedlib.methods.fedavg import FedAvg

__all__ = ["Client", "FedAvg", "Method", "Server", "State"]

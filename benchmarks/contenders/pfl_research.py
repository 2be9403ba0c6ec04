"""pfl-research's simulated backend: one process, or several as its own distributed mode has them."""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks import workload
from benchmarks.contenders import idiomatic


def run(images: Path, rounds: int, threads: int, processes: int = 1, bf16: bool = False) -> list[float]:
    if processes == 1:
        return train(images, rounds, threads, bf16)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    os.environ["PFL_WORKER_ADDRESSES"] = ",".join(f"localhost:{port + i}" for i in range(processes))
    # os._exit: a thread of its communication that is still there when Python ends now and then aborts the process.
    call = (
        f"import os, pathlib; from {__name__} import train; "
        f"train(pathlib.Path({str(images)!r}), {rounds}, 1, {bf16}); os._exit(0)"
    )
    others = [
        subprocess.Popen([sys.executable, "-c", call], env=os.environ | {"PFL_WORKER_RANK": str(rank)})
        for rank in range(1, processes)
    ]
    os.environ["PFL_WORKER_RANK"] = "0"
    ends = train(images, rounds, 1, bf16)
    for other in others:
        if other.wait():
            raise RuntimeError(f"a process of pfl-research ended with {other.returncode}")
    return ends


def train(images: Path, rounds: int, threads: int, bf16: bool) -> list[float]:
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Metrics, Weighted
    from pfl.model.pytorch import PyTorchModel

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = idiomatic.network()

        def loss(self, x, y):
            self.train()
            return F.cross_entropy(self.layers(x), y)

        def metrics(self, x, y):  # asked for before the first round, which is not timed
            return {"loss": Weighted(float(self.loss(x, y)), 1)}

    ends = []

    class Clock(TrainingProcessCallback):
        def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
            ends.append(workload.now())
            return False, Metrics()

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002  pfl draws its cohorts' seeds from it
    x, y = workload.read(images)

    def dataset(client: int) -> PyTorchTensorDataset:
        order = torch.randperm(workload.OWN)  # pfl takes batches in the order of the data
        return PyTorchTensorDataset([part[order] for part in idiomatic.samples(x, y, client)], user_id=client)

    order = itertools.chain.from_iterable(workload.cohorts(rounds))
    data = FederatedDataset(dataset, lambda: next(order))
    net = Net()
    model = PyTorchModel(
        net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0), amp_dtype=torch.bfloat16 if bf16 else None
    )
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=rounds, evaluation_frequency=rounds, train_cohort_size=workload.PER_ROUND,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(data, data, postprocessors=[WeightByDatapoints()]),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=workload.LR, local_batch_size=workload.BATCH
        ),
        model_eval_params=None,
        callbacks=[Clock()],
    )  # fmt: skip
    return ends

"""FedAvg as most papers' code has it: one process, a deep copy of the model for each client."""

from __future__ import annotations

import copy
from pathlib import Path

import torch

from benchmarks import workload
from benchmarks.contenders import idiomatic


def run(images: Path, rounds: int, threads: int, index: bool = False, bf16: bool = False) -> list[float]:
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    x, y = workload.read(images)
    server, ends = idiomatic.network(), []
    for cohort in workload.cohorts(rounds):
        states, sizes = [], []
        for client in cohort:
            own = idiomatic.samples(x, y, client)
            net = copy.deepcopy(server)
            idiomatic.train(net, *own, index, bf16)
            states.append(net.state_dict())
            sizes.append(len(own[1]))
        total = sum(sizes)
        server.load_state_dict({
            name: sum(state[name] * (size / total) for state, size in zip(states, sizes, strict=True))
            for name in states[0]
        })  # fmt: skip
        ends.append(workload.now())
    return ends

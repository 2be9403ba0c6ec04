"""The limit: fedlib's network and tricks in the shortest loop, two processes of one thread that never talk.

No client, no server, no method, no record: each process trains on one client's images after another, from where the
last one left the weights. What fedlib needs beyond this is what federation costs.
"""

from __future__ import annotations

import itertools
import multiprocessing
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F

from benchmarks import workload
from fedlib.layers import first_order
from fedlib.models import CNN


def run(images: Path, rounds: int, threads: int, bf16: bool = False) -> list[float]:
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(threads), context.SimpleQueue()
    processes = [
        context.Process(target=_train, args=(images, rounds, clients, bf16, barrier, results))
        for clients in shares(threads)
    ]
    for process in processes:
        process.start()
    ends = [results.get() for _ in processes]
    for process in processes:
        process.join()
    return [max(times) for times in zip(*ends, strict=True)]


def shares(processes: int) -> list[int]:
    """Clients per round of each process."""
    ends = [workload.PER_ROUND * i // processes for i in range(processes + 1)]
    return [b - a for a, b in itertools.pairwise(ends)]


def _train(images: Path, rounds: int, clients: int, bf16: bool, barrier, results) -> None:
    loop = training(images, clients, bf16)
    barrier.wait()
    results.put([workload.now() for _ in itertools.islice(loop, rounds)])


def training(images: Path, clients: int, bf16: bool) -> Iterator[None]:
    """One process's loop, ready to start: a round with so many clients each time that it is asked."""
    torch.set_num_threads(1)
    x, y = (torch.from_numpy(a) for a in workload.read(images, "c"))
    net = CNN(channels=(32, 64), dense=(128,)).build(workload.SHAPE, workload.CLASSES)
    net.to(memory_format=torch.channels_last)
    first_order(net)
    master = [p.detach().clone(memory_format=torch.preserve_format) for p in net.parameters()]
    if bf16:
        net.bfloat16()
    weights = list(net.parameters())
    values = [p.data for p in weights]
    own = workload.OWN

    def rounds() -> Iterator[None]:
        for first in itertools.count(0, clients):
            for client in range(first, first + clients):
                start = client % workload.CLIENTS * own
                for rows in (start + torch.randperm(own)).split(workload.BATCH):
                    batch = x[rows].flatten(1).float().sub_(127.5).mul_(1 / 63.75)
                    batch = batch.view(-1, *workload.SHAPE).permute(0, 3, 1, 2)
                    if bf16:
                        torch._foreach_copy_(values, master)
                        batch = batch.bfloat16()
                    loss = F.cross_entropy(net(batch).float(), y[rows])
                    gradients = torch.autograd.grad(loss, weights)
                    if bf16:
                        for w, g in zip(master, gradients, strict=True):
                            w.add_(g, alpha=-workload.LR)
                    else:
                        torch._foreach_add_(values, gradients, alpha=-workload.LR)
            yield

    return rounds()

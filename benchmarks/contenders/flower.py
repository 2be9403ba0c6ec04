"""Flower's simulation: two Ray actors of one CPU and one torch thread, the message API's FedAvg."""

from __future__ import annotations

import os
from pathlib import Path

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks import workload
from benchmarks.contenders import idiomatic

client_app = ClientApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    config = message.content["config"]
    x, y = workload.read(Path(config["images"]))
    own = idiomatic.samples(x, y, context.node_config["partition-id"])
    net = idiomatic.network()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    idiomatic.train(net, *own, config["index"])
    metrics = MetricRecord({"num-examples": len(own[1])})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)


def run(images: Path, rounds: int, threads: int, index: bool = False) -> list[float]:
    ends = []
    server_app = ServerApp()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(
            fraction_train=workload.PER_ROUND / workload.CLIENTS, fraction_evaluate=0.0,
            min_available_nodes=workload.CLIENTS,
        )  # fmt: skip
        strategy.start(
            grid, ArrayRecord(idiomatic.network().state_dict()), num_rounds=rounds,
            train_config=ConfigRecord({"images": str(images), "index": index}),
            evaluate_fn=lambda round, arrays: ends.append(workload.now()) if round else None,
        )  # fmt: skip

    run_simulation(
        server_app, client_app, num_supernodes=workload.CLIENTS,
        backend_config={"init_args": {"num_cpus": threads}, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )  # fmt: skip
    return ends

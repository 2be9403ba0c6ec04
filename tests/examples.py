"""One small run of every registered method, and of its variants, on digits: what the golden trajectories pin and what
tests of all methods go through. A method that cannot run with its defaults gets an entry in `CASES`.
"""

from fedlib import federation
from fedlib import workers as pools
from fedlib.experiment import Experiment
from fedlib.methods import (
    SCAFFOLD,
    ByEMD,
    Curriculum,
    DataSharing,
    EqualBudget,
    FedAvgM,
    FedCurv,
    FedDecorr,
    FedDF,
    FedNova,
    FedProx,
    FedRep,
    FineTuning,
    LabelFlips,
    LGFedAvg,
    NumberFormats,
    PerFedAvg,
    PoisonCheck,
    PowerOfChoice,
    Private,
    PrivateLayers,
    Quantised,
    SkipUpdate,
    StepBudget,
    UpdateMask,
    published,
)
from fedlib.models import CNN, Linear
from fedlib.partitions import Dirichlet, Shards
from fedlib.schedules import Cosine, Exponential, Step

BASE = Experiment(
    train_images=600, holdout=100, clients=5, per_round=3, partition=Dirichlet(alpha=0.5), rounds=10, batch_size=20,
    lr=0.02, model=CNN(channels=(4, 8), dense=(16,)), evaluate_every=10,
)  # fmt: skip

ONE_CLASS = Experiment(
    train_images=400, holdout=100, partition=Shards(classes_per_client=1), rounds=2, batch_size=20, model=Linear(),
    evaluate_every=2,
)  # fmt: skip
"""Zhao et al.'s construction in small: 10 clients of one class each, a holdout of a quarter of their data."""

CASES: dict[str, dict] = {
    "FedCurv": {"methods": (FedCurv(lam=0.1),)},
    "SCAFFOLD-I": {"methods": (SCAFFOLD(option="I", eta_g=0.5),), "momentum": 0.5},
    "FedAvgM-damped": {"methods": (FedAvgM(form="damped"),)},
    # Without normalisation the official scaling at 0.1 magnifies rounding errors a thousandfold in every round.
    "FedDecorr": {"methods": (FedDecorr(beta=0.01),), "model": CNN(channels=(4, 8), dense=(), norm="group")},
    "FedDecorr-paper": {"methods": (FedDecorr(scaling="paper", layer="fc1", beta=1.0),)},
    "DataSharing-copies": {
        "methods": (DataSharing(beta=0.1, alpha=0.5, warm_up=1, copies=(LabelFlips(), Quantised())),),
        "schedule": Step(),
    },
    "DataSharing-private": {
        "methods": (DataSharing(beta=0.1, copies=(Private(epsilon=30.0),), policy=ByEMD()),), "schedule": Cosine(),
    },
    "DataSharing-budget": {
        "methods": (DataSharing(beta=0.1, policy=EqualBudget()),), "schedule": Exponential(decay=0.9),
    },
    "FedProx": {"methods": (FedProx(mu=1.0),)},
    "FedNova-momentum-proximal": {"methods": (FedProx(mu=0.1), FedNova()), "momentum": 0.9, "lr": 0.01},
    "SkipUpdate-rmsprop": {"methods": (SkipUpdate(unit="row"),), "optimizer": "rmsprop", "lr": 0.001},
    "SkipUpdate-shared-round": {"methods": (SkipUpdate(unit="column", shared=True, redraw="round"),)},
    "UpdateMask-shared": {"methods": (UpdateMask(unit="element", shared=True),)},
    "Curriculum": {"methods": (Curriculum(join=(1, 4)),)},
    "FedDF": {"methods": (FedDF(steps=10),)},
    "FedRep": {"methods": (FedRep(head_epochs=2),)},
    "FineTuning-early-stop": {"methods": (FineTuning(layers=("*",), held_back=0.2),)},
    "LGFedAvg-dense": {"methods": (LGFedAvg(shared=("fc*", "head")),)},
    "NumberFormats-three": {"methods": (NumberFormats(shares=(0.2, 0.4, 0.4), formats=("fp32", "bf16", "int8")),)},
    "PerFedAvg-FO": {"methods": (PerFedAvg(variant="FO", alpha=0.1),)},
    "PoisonCheck": {"methods": (DataSharing(), PoisonCheck())},
    "PowerOfChoice": {"methods": (PowerOfChoice(d=4),)},
    "PrivateLayers": {"methods": (PrivateLayers(private=("conv*",)),)},
    "StepBudget": {"methods": (StepBudget(steps=(6, 2)),)},
    "BatchNorm": {"model": CNN(channels=(4, 8), norm="batch"), "methods": (FedProx(), FedAvgM(beta=0.5))},
    "weight decay, augmented": {"weight_decay": 0.001, "augment": True},
}


def experiments() -> dict[str, Experiment]:
    """Name of the case -> its experiment; one under the name of every registered method."""
    defaults = {name: {"methods": (method(),)} for name, method in published().items() if name not in CASES}
    return {name: BASE.but(**fields) for name, fields in sorted((defaults | CASES).items())}


def play(experiment: Experiment, workers: int = 1) -> federation.Run:
    """The run, to its end; with several workers on them alone."""
    pools.wait(workers)
    run = federation.begin(experiment, workers=workers)
    for _ in federation.play(run):
        pass
    return run

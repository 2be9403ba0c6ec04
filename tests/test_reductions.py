"""Switched off, a method is FedAvg to the last bit; switched on, it is not."""

import pytest
import torch
from examples import play

from fedlib import federation, workers
from fedlib.experiment import Experiment
from fedlib.methods import (
    MOON,
    SCAFFOLD,
    Curriculum,
    Ditto,
    FedAvg,
    FedAvgM,
    FedCurv,
    FedDecorr,
    FedNova,
    FedProx,
    LocalEpochs,
    NumberFormats,
    PerFedAvg,
    PowerOfChoice,
    SkipUpdate,
    StepBudget,
    TrainOnly,
    UpdateMask,
)
from fedlib.models import CNN
from fedlib.partitions import QuantitySkew

# Clients of 80 samples take 4 steps of 20, so that FedNova's division and multiplication are exact.
BASE = Experiment(
    train_images=320, clients=4, batch_size=20, rounds=3, model=CNN(channels=(4, 8), dense=(16,), norm="batch"),
    evaluate_every=3,
)  # fmt: skip

OFF_AND_ON = {
    "FedProx mu": (FedProx(mu=0.0), FedProx(mu=0.1)),
    "FedDecorr beta, official": (FedDecorr(beta=0.0), FedDecorr(beta=0.1)),
    "FedDecorr beta, paper": (FedDecorr(beta=0.0, scaling="paper"), FedDecorr(beta=0.1, scaling="paper")),
    "FedDecorr beta, layer": (FedDecorr(beta=0.0, layer="conv2"), FedDecorr(beta=0.1, layer="conv2")),
    "MOON mu": (MOON(mu=0.0), MOON(mu=1.0)),
    "FedAvgM beta": (FedAvgM(beta=0.0), FedAvgM(beta=0.5)),
    "FedAvgM beta, damped": (FedAvgM(beta=0.0, form="damped"), FedAvgM(beta=0.5, form="damped")),
    "FedCurv lambda": (FedCurv(lam=0.0), FedCurv(lam=0.1)),
    "UpdateMask p": (UpdateMask(p=1.0), UpdateMask(p=0.5)),
    "SkipUpdate p": (SkipUpdate(p=1.0), SkipUpdate(p=0.5)),
    "SkipUpdate p, element": (SkipUpdate(p=1.0, unit="element"), SkipUpdate(p=0.5, unit="element")),
    "PerFedAvg alpha, HF": (PerFedAvg(alpha=0.0), PerFedAvg(alpha=0.1)),
    "PerFedAvg alpha, FO": (PerFedAvg(alpha=0.0, variant="FO"), PerFedAvg(alpha=0.1, variant="FO")),
    "LocalEpochs": (LocalEpochs(low=1, high=1), LocalEpochs(low=1, high=3)),
    "StepBudget": (StepBudget(steps=(4, 4)), StepBudget(steps=(4, 2))),
    "NumberFormats": (NumberFormats(formats=("fp32", "fp32")), NumberFormats(formats=("fp32", "bf16"))),
    "Curriculum": (Curriculum(join=(1, 1)), Curriculum(join=(1, 3))),
    "TrainOnly": (TrainOnly(layers=("*",)), TrainOnly(layers=("head", "norm*"))),
}


@pytest.fixture(scope="module")
def fedavg():
    return play(BASE)


def same(run, other) -> bool:
    return torch.equal(run.w, other.w) and run.series["train_loss"] == other.series["train_loss"]


@pytest.mark.parametrize("name", OFF_AND_ON)
def test_off_is_fedavg_and_on_is_not(name, fedavg):
    off, on = OFF_AND_ON[name]
    assert same(play(BASE.but(methods=(off,))), fedavg)
    assert not same(play(BASE.but(methods=(on,))), fedavg)


def test_fedavg_is_the_empty_method(fedavg):
    assert same(play(BASE.but(methods=(FedAvg(),))), fedavg)


def test_fednova_with_equal_steps_is_fedavg(fedavg):
    assert same(play(BASE.but(methods=(FedNova(),))), fedavg)
    # Equal steps of momentum too, where dividing by ||a||_1 and multiplying by tau_eff rounds.
    momentum = BASE.but(momentum=0.9, lr=0.01)
    nova, plain = play(momentum.but(methods=(FedNova(),))), play(momentum)
    torch.testing.assert_close(nova.w, plain.w, rtol=1e-4, atol=1e-5)
    uneven = BASE.but(partition=QuantitySkew(ratio=4.0))
    assert not same(play(uneven.but(methods=(FedNova(),))), play(uneven))


@pytest.mark.parametrize("option", ["I", "II"])
def test_scaffolds_first_round_is_fedavgs(option):
    scaffold = BASE.but(methods=(SCAFFOLD(option=option),))
    assert same(play(scaffold.but(rounds=1)), play(BASE.but(rounds=1)))
    assert not same(play(scaffold.but(rounds=2)), play(BASE.but(rounds=2)))


def test_power_of_choice_among_as_many_candidates_as_clients_is_fedavgs_choice():
    sampled = BASE.but(per_round=2)
    plain = play(sampled)
    assert same(play(sampled.but(methods=(PowerOfChoice(d=2, candidates="uniform"),))), plain)
    assert not same(play(sampled.but(methods=(PowerOfChoice(d=4, candidates="uniform"),))), plain)


def test_ditto_with_lambda_0_is_local_training():
    local, drawn = play(BASE.but(methods=(Ditto(lam=0.0),))), play(BASE.but(methods=(Ditto(lam=0.1),)))
    for k in range(BASE.clients):
        w = local.setting.w_init
        for round in range(1, BASE.rounds + 1):
            client = federation.new_client(local.setting, k, round, w, {}, {}, BASE.lr)
            with workers.single_thread():
                client.fit(client, methods=(), purpose="ditto")
            w = client.w.clone()
        assert torch.equal(local.clients[k]["ditto_v"], w)
        assert not torch.equal(drawn.clients[k]["ditto_v"], w)

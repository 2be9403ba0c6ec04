"""Clients trained together give what the local loop gives, up to rounding. On the CPU: no GPU was to be had."""

import re

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from fedlib import batched, federation, local, sweep
from fedlib.experiment import Experiment
from fedlib.local import Diverged
from fedlib.measures import ClientTrace, Drift
from fedlib.methods import (
    SCAFFOLD,
    DataSharing,
    FedAvgM,
    FedPer,
    FedProx,
    LocalEpochs,
    Method,
    PerFedAvg,
    StepBudget,
    UpdateMask,
)
from fedlib.models import CNN, Linear, ResNet
from fedlib.partitions import QuantitySkew
from fedlib.records import Store
from fedlib.spec import InputError

SMALL = Experiment(
    train_images=300, holdout=50, clients=7, per_round=5, rounds=2, batch_size=16, partition=QuantitySkew(ratio=8.0),
    model=CNN(channels=(4, 8), dense=(16,)), evaluate_every=2,
)  # fmt: skip
"""Clients of 10 to 80 samples: batches of different sizes, and different numbers of them."""


def play(experiment, device=None):
    run = federation.begin(experiment)
    run.device = device and torch.device(device)
    for _ in federation.play(run):
        pass
    return run


def assert_same(experiment, w=1e-4, loss=1e-5):
    """After all rounds weights differ by at most `w` of how far they have moved, and losses by `loss` of their value.

    Rounding the weights alone is 1e-5 to 5e-5 of the way.
    """
    assert batched.why_not(experiment) is None
    alone, together = play(experiment), play(experiment, "cpu")
    assert float((together.w - alone.w).norm()) <= w * float((alone.w - alone.setting.w_init).norm())
    assert together.series.keys() == alone.series.keys()
    for name in ("train_loss", "test_loss", "weight_norm", "gradients", "bytes_up", "bytes_down"):
        assert together.series[name]["round"] == alone.series[name]["round"]
        assert together.series[name]["value"] == pytest.approx(alone.series[name]["value"], rel=loss)
    return alone, together


@pytest.mark.parametrize("fields", [
    {},
    {"epochs": 3, "momentum": 0.9, "lr": 0.02},
    {"weight_decay": 0.01, "momentum": 0.5, "epochs": 2},
    {"batch_size": None, "epochs": 2, "lr": 0.2},
    {"batch_size": 1, "train_images": 60, "lr": 0.01},
    {"model": Linear()},
    {"model": CNN(channels=(4, 32), dense=(), norm="group"), "momentum": 0.5},
    {"model": ResNet(blocks=(1, 1), width=4, norm="group"), "train_images": 100, "lr": 0.02},
], ids=lambda fields: ", ".join(fields) or "plain")  # fmt: skip
def test_the_numbers_are_those_of_the_local_loop(fields):
    assert_same(SMALL.but(**fields))


def test_sizes_and_steps_differ_in_these_tests():
    sizes = federation.Setting(SMALL).sizes
    assert len({-(-n // 16) for n in sizes}) > 2 and any(n % 16 for n in sizes) and sizes.min() < 16


@pytest.mark.parametrize("norm", ["none", "group"])
def test_bf16_is_that_of_the_local_loop(norm):
    """Rounding to eight bits falls either way: here it moves the weights by about 1 % of their way."""
    e = SMALL.but(precision="bf16", momentum=0.9, model=CNN(channels=(4, 32), dense=(16,), norm=norm))
    alone, together = assert_same(e, w=0.02, loss=2e-3)
    exact = play(e.but(precision="fp32"))
    assert float((together.w - exact.w).norm()) > 1e-3 * float((exact.w - exact.setting.w_init).norm())


def test_more_clients_than_are_trained_together(monkeypatch):
    monkeypatch.setattr(batched, "CLIENTS", 2)
    assert_same(SMALL.but(momentum=0.5))
    sizes, descend = [], batched._descend
    monkeypatch.setattr(batched, "_descend", lambda work, *rest: (sizes.append(len(work)), descend(work, *rest)))
    play(SMALL, "cpu")
    assert sizes == [2, 2, 1] * SMALL.rounds


@pytest.mark.parametrize("methods", [
    (DataSharing(beta=0.1), LocalEpochs(high=3), UpdateMask(p=0.5), FedAvgM(beta=0.5)),
    (StepBudget(steps=(5, 2)), FedPer()),
], ids=["epochs", "steps"])  # fmt: skip
def test_methods_and_measures_before_and_after_the_steps(methods):
    """Own weights to start from, shared samples, own numbers of epochs and steps; masks, momentum, measures."""
    e = SMALL.but(methods=methods, measures=(Drift(), ClientTrace(images=50)), rounds=3)
    alone, together = assert_same(e)
    for name in ("drift", "drift_max", "update_cosine"):
        assert together.series[name]["value"] == pytest.approx(alone.series[name]["value"], rel=1e-4)
    for mine, theirs in zip(*(run.series["client_trace"]["value"] for run in (together, alone)), strict=True):
        assert mine["client"] == theirs["client"] and mine["n"] == theirs["n"]
        np.testing.assert_allclose(mine["loss"], theirs["loss"], rtol=1e-3)


class OwnRate(Method):
    """Every client has a learning rate of its own."""

    def start(self, client):
        client.lr *= 1 + client.index % 3


def test_clients_with_learning_rates_of_their_own():
    assert_same(SMALL.but(methods=(OwnRate(),), momentum=0.5))


@pytest.mark.parametrize("fields, reason", [
    ({"methods": (FedProx(),)}, "FedProx takes part in every batch"),
    ({"methods": (FedAvgM(), SCAFFOLD())}, "SCAFFOLD takes part in every batch"),
    ({"methods": (PerFedAvg(),)}, "PerFedAvg takes part in every batch (its hook 'gradient')"),
    ({"optimizer": "rmsprop"}, "the optimiser is rmsprop"),
    ({"augment": True}, "images are augmented"),
    ({"model": CNN(norm="batch")}, "the network keeps running statistics (body.norm1.running_mean)"),
])  # fmt: skip
def test_what_trains_alone_says_why(monkeypatch, fields, reason):
    e = SMALL.but(**fields)
    assert reason in batched.why_not(e)
    monkeypatch.setattr(batched, "device", lambda: torch.device("cpu"))
    words = f"FEDLIB_DEVICE: clients train one by one on the CPU, since {reason}"
    with pytest.warns(UserWarning, match=re.escape(words)):
        assert federation.begin(e).device is None
    assert federation.begin(SMALL).device == torch.device("cpu")


def test_divergence_names_round_and_client():
    def message(device):
        with pytest.raises(Diverged) as error:
            play(SMALL.but(lr=1e6, momentum=0.9), device)
        return str(error.value)

    assert message("cpu").split(":")[0] == message(None).split(":")[0]  # the same round, the same client
    assert "round 1, client " in message("cpu") and "lower lr (now 1e+06)" in message("cpu")


def test_it_is_off_unless_asked_for(monkeypatch, tmp_path):
    def never(*_):
        raise AssertionError

    monkeypatch.setattr(batched, "train", never)
    for given in (None, "cpu"):
        monkeypatch.delenv(batched.VARIABLE, raising=False)
        if given:
            monkeypatch.setenv(batched.VARIABLE, given)
        assert federation.begin(SMALL).device is None
    record = sweep.obtain(SMALL.but(rounds=1), Store(tmp_path, tmp_path))
    assert record.provenance["device"] == "cpu"


def test_a_record_says_where_its_clients_were_trained(monkeypatch, tmp_path):
    monkeypatch.setattr(batched, "device", lambda: torch.device("cpu", 0))
    assert sweep.obtain(SMALL.but(rounds=1), Store(tmp_path, tmp_path)).provenance["device"] == "cpu:0"


@pytest.mark.parametrize("fields", [{"momentum": 0.5}, {"precision": "bf16", "model": CNN(norm="group", dense=())}])
def test_nothing_is_left_on_the_cpu(monkeypatch, fields):
    """On a device that PyTorch only pretends to have: it refuses what lies elsewhere, and has no backward pass."""
    monkeypatch.setattr(batched, "grad_and_value", lambda loss: lambda w, *batch: (w, loss(w, *batch)))
    e = SMALL.but(**fields)
    s = federation.setting(e)
    clients = [federation.started(e, k, 1, s.w_init, {}, {}) for k in range(2)]
    work = [batched.Work(client, s.w_init, batched._batches(client)) for client in clients]
    on, step = [], local.SGD.step

    def watched(self):
        on.append({self.w.device.type, self.g.device.type})
        step(self)

    monkeypatch.setattr(local.SGD, "step", watched)
    with FakeTensorMode(allow_non_fake_inputs=True):
        batched._descend(sorted(work, key=lambda own: -len(own.batches)), e.lr, e, torch.device("cuda"))
    assert on == [{"cuda"}] * max(len(own.batches) for own in work)
    assert {own.w.device.type for own in work} == {"cpu"}


@pytest.mark.parametrize("gpus, given, message", [
    (0, "cuda", r"FEDLIB_DEVICE = 'cuda' \(allowed: cpu; PyTorch finds no CUDA device here\)"),
    (0, "cpuu", r"FEDLIB_DEVICE = 'cpuu'; did you mean 'cpu'\?"),
    (2, "cuda:2", r"FEDLIB_DEVICE = 'cuda:2'; did you mean 'cuda:\d'\? \(allowed: cpu, cuda, cuda:0, cuda:1\)"),
    (2, "cudda", r"did you mean 'cuda'\?"),
])  # fmt: skip
def test_a_device_that_is_not_there_is_refused_before_training(monkeypatch, gpus, given, message):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setenv(batched.VARIABLE, given)
    for begin in (federation.check, federation.begin):
        with pytest.raises(InputError, match=message):
            begin(SMALL)


def test_a_device_that_is_there_is_taken(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for given in ("cuda", "cuda:1"):
        monkeypatch.setenv(batched.VARIABLE, given)
        assert federation.begin(SMALL).device == torch.device(given)
        with pytest.warns(UserWarning, match="FedProx"):
            assert federation.begin(SMALL.but(methods=(FedProx(),))).device is None

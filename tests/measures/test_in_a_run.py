"""All measures at once in a real run on digits: they change nothing, on however many workers, and keep no model."""

import json

import numpy as np
import pytest
import torch

from fedlib import federation
from fedlib import workers as pools
from fedlib.experiment import Experiment
from fedlib.measures import (
    ClientTrace,
    Drift,
    Flatness,
    Forgetting,
    Holdings,
    MaskingPenalty,
    Measure,
    Spectrum,
    Survival,
)
from fedlib.measures.forgetting import own_accuracy
from fedlib.models import CNN
from fedlib.partitions import ConceptDrift, Shards
from fedlib.records import rounded

MEASURES = (
    Spectrum(), Survival(gradients=True), Drift(), Forgetting(), ClientTrace(), Holdings(),
    MaskingPenalty(images=50, draws=3, every=2), Flatness(images=50, probes=2, perturbations=2, every=2),
)  # fmt: skip
DIGITS = Experiment(
    model=CNN(channels=(4, 8), dense=(16,), norm="batch"), partition=Shards(classes_per_client=2), clients=6,
    per_round=4, train_images=600, rounds=4, measures=MEASURES,
)  # fmt: skip


def play(experiment, workers=1):
    pools.wait(workers)
    run = federation.begin(experiment, workers=workers)
    for _ in federation.play(run):
        pass
    return run


@pytest.fixture(scope="module")
def run():
    return play(DIGITS)


def test_two_workers_give_the_same_series(run):
    two = play(DIGITS, workers=2)
    assert torch.equal(run.w, two.w)
    assert json.dumps(run.series, allow_nan=False) == json.dumps(two.series, allow_nan=False)
    assert rounded(run.series) == rounded(two.series)  # as a record stores them


def test_measuring_changes_no_number_of_training(run):
    plain = play(DIGITS.but(measures=()))
    assert torch.equal(run.w, plain.w)
    assert plain.series.items() <= run.series.items()


def test_measured_when_due(run):
    for name, series in run.series.items():
        due = [1, 3, 4] if name.startswith(("penalty", "hessian", "perturbed")) else [1, 2, 3, 4]
        assert series["round"] == due, name


def test_every_measure_of_the_package_is_in_the_run():
    assert {type(m).__name__ for m in MEASURES} | {"WeightDivergence"} <= set(Measure.family)
    assert Experiment.from_dict(json.loads(json.dumps(DIGITS.to_dict()))) == DIGITS


def test_what_was_measured_fits_together(run):
    values = {name: series["value"] for name, series in run.series.items()}
    labels = run.setting.dataset.y_test
    for r in range(4):
        trace = values["client_trace"][r]
        assert len(trace["client"]) == 4
        assert np.average(trace["loss"], weights=trace["n"]) == pytest.approx(values["train_loss"][r], rel=1e-3)
        assert trace["update_norm"] == trace["distance"]  # FedAvg sends what it moved
        assert np.mean(trace["distance"]) == pytest.approx(values["drift"][r], rel=1e-3)
        assert values["survival"][r] == pytest.approx(1 / values["diversity"][r])
        assert 1 <= values["effective_rank_local"][r] <= 16 and 1 <= values["effective_rank_global"][r] <= 16
        assert values["spectrum_local"][r] == sorted(values["spectrum_local"][r], reverse=True)
        # All 1,000 test images were used, so the global model's accuracy by class is the run's own.
        own = []
        for k in trace["client"]:
            held = np.bincount(run.setting.dataset.y_train[run.setting.shards[k]], minlength=10)
            assert (held > 0).sum() <= 3
            own.append(own_accuracy(held, np.array(values["test_accuracy_per_class"][r])))
        assert values["own_accuracy_global"][r] == pytest.approx(np.mean(own))
        assert values["forgetting"][r] == pytest.approx(np.mean(list(values["forgetting_clients"][r].values())))
    assert np.mean(values["forgetting"]) > 0.1  # clients with two classes know them better than the average does
    assert len(labels) == 1000


def test_a_client_that_sees_its_own_test_images_is_judged_by_them():
    """Under concept drift half of the clients call 3 what the others call 2: one accuracy for all would be wrong."""
    e = DIGITS.but(partition=ConceptDrift(fraction=0.5), rounds=1, measures=(Forgetting(),))
    run = play(e)
    s, drops = run.setting, run.series["forgetting_clients"]["value"][0]
    expected = []
    for k in map(int, drops):
        images, labels = e.partition.view_test(s.dataset.x_test, s.dataset.y_test, k, e.clients, 1)
        right = s.scores(run.w, images, labels)[1]
        held = np.bincount(s.samples(k, 1)[1], minlength=10)
        expected.append(held @ (right / np.bincount(labels, minlength=10)) / held.sum())
    assert run.series["own_accuracy_global"]["value"][0] == pytest.approx(np.mean(expected))


def tensors(value):
    """Bytes of all tensors in nested containers and objects."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, dict):
        return sum(map(tensors, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(tensors, value))
    return tensors(vars(value)) if type(value).__name__ == "Sums" else 0


@pytest.mark.parametrize("measure", MEASURES, ids=lambda m: type(m).__name__)
def test_memory_does_not_grow_with_the_clients(run, measure):
    scratch = measure.begin(run)
    before, kept = tensors(scratch), {}
    for k in range(20):
        client = federation.new_client(run.setting, k % 6, 1, run.w, {}, {}, 0.1)
        client.delta = torch.full_like(run.w, 0.01)
        kept[k] = measure.client(client)
        measure.observe(scratch, k, client.n, client.delta, kept[k])
    assert tensors(scratch) == before
    assert tensors(kept) == 0

import numpy as np
import pytest
import torch
from examples import play

from fedlib import federation
from fedlib.experiment import Experiment
from fedlib.measures import FineTuningCurve, PerClient
from fedlib.methods import PrivateLayers
from fedlib.models import CNN
from fedlib.partitions import Dirichlet

BASE = Experiment(
    train_images=300, clients=6, rounds=3, batch_size=10, partition=Dirichlet(alpha=0.3),
    model=CNN(channels=(4,), dense=(8,), norm="batch"), measures=(PerClient(),),
)  # fmt: skip
CURVES = tuple(FineTuningCurve(part=part, epochs=12, every=2) for part in ("head", "whole"))


@pytest.fixture(scope="module")
def run():
    return play(BASE.but(measures=(*BASE.measures, *CURVES)))


def test_it_starts_from_the_model_that_the_clients_received(run):
    """Round 3's curves begin at the global model of round 2, as PerClient has measured it there."""
    before = run.series["client_accuracy"]["value"][1]
    for part in ("head", "whole"):
        series = run.series[f"{part}_tuned_accuracy"]
        assert series["round"] == [2, 3]
        assert np.shape(series["value"][-1]) == (13, 6)
        assert series["value"][-1][0] == pytest.approx(before)
        assert run.series[f"{part}_tuned_sizes"]["value"][-1] == federation.setting(BASE).sizes.tolist()


def test_the_first_value_on_own_samples_is_that_of_the_global_model():
    e = BASE.but(rounds=1, measures=(FineTuningCurve(epochs=1),))
    s, run = federation.setting(e), play(e)
    for k, value in enumerate(run.series["whole_tuned_train_accuracy"]["value"][0][0]):
        x, y = s.samples(k, 1)
        assert value == s.scores(s.w_init, x, y)[1].sum() / len(y)


def test_fine_tuning_learns_the_own_samples_and_the_whole_network_more_of_them(run):
    head, whole = (np.mean(run.series[f"{part}_tuned_train_accuracy"]["value"][-1], 1) for part in ("head", "whole"))
    assert head[-1] > head[0] and whole[-1] > whole[0] and whole[-1] > head[-1]


def test_it_changes_no_number_of_training_and_is_not_counted_as_work(run):
    plain = play(BASE)
    assert torch.equal(run.w, plain.w)
    assert plain.series.items() <= run.series.items()


def test_a_client_with_private_layers_starts_from_its_own_model():
    """Alone, a client received what it had: its curve goes on where its own model stood."""
    e = BASE.but(methods=(PrivateLayers(private=("*",)),), measures=(*BASE.measures, FineTuningCurve(epochs=1)))
    run = play(e)
    before = run.series["client_accuracy"]["value"][1]
    assert run.series["whole_tuned_accuracy"]["value"][-1][0] == pytest.approx(before)

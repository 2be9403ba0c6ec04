import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlib import federation
from fedlib.experiment import Experiment
from fedlib.measures import PerClient
from fedlib.measures.fairness import halves, jain, worst_by_chance, worst_decile
from fedlib.methods import FineTuning
from fedlib.models import CNN
from fedlib.partitions import Dirichlet
from fedlib.spec import InputError

BASE = Experiment(
    train_images=600, clients=10, per_round=2, rounds=2, batch_size=20, partition=Dirichlet(alpha=0.5),
    model=CNN(channels=(4,), dense=(8,)), measures=(PerClient(every=5), PerClient(every=5, images="all")),
)  # fmt: skip


def test_jain_by_hand():
    assert jain([0.5, 0.5, 0.5]) == pytest.approx(1)
    assert jain([1, 0, 0, 0]) == pytest.approx(1 / 4)
    assert jain([1, 2, 3]) == pytest.approx(36 / 42)
    assert jain([0, 0]) == 1
    for bad in ([], [[1.0]], [-1.0, 2.0]):
        with pytest.raises(InputError, match="values"):
            jain(bad)


@given(st.lists(st.floats(0.001, 1), min_size=1, max_size=30), st.floats(0.01, 100))
def test_jain_is_between_its_bounds_and_ignores_the_scale(values, scale):
    index = jain(values)
    assert 1 / len(values) - 1e-9 <= index <= 1 + 1e-9
    assert jain(np.array(values) * scale) == pytest.approx(index)


def test_worst_decile():
    assert worst_decile(np.arange(10.0)) == 0
    assert worst_decile(np.arange(20.0)[::-1]) == 0.5
    assert worst_decile(np.arange(21.0)) == 1  # ceil(2.1) = 3 of them
    assert worst_decile(np.array([0.7])) == 0.7


def test_halves_by_size():
    assert halves([5, 1, 3, 9], [0.5, 0.1, 0.3, 0.9]).tolist() == pytest.approx([0.2, 0.7])
    assert halves([1, 2, 3], [1.0, 2.0, 4.0]).tolist() == [1, 3]  # the middle one is of the larger half
    assert halves([2, 2], [0.0, 1.0]).tolist() == [0, 1]
    with pytest.raises(InputError, match="at least two"):
        halves([1], [0.5])


def test_the_worst_decile_by_chance():
    """Ten clients with one coin each, heads half of the time: the mean less the minimum is 1/2 but for all alike."""
    assert worst_by_chance([0.5] * 10, [1] * 10) == pytest.approx(0.5, abs=0.02)
    assert worst_by_chance([0.0, 1.0] * 5, [10**8] * 10) < 1e-3  # with many images nothing is left to chance
    assert worst_by_chance([1.0] * 10, [5] * 10) == 0
    few, many = (worst_by_chance([0.8] * 20, [n] * 20) for n in (20, 500))
    assert few > 2 * many > 0


def last(run, name):
    return run.series[name]["value"][-1]


def play(experiment):
    run = federation.begin(experiment)
    for _ in federation.play(run):
        pass
    return run


def test_without_a_personal_step_it_is_the_global_model_on_each_clients_test_images():
    run = play(BASE)
    s = federation.setting(BASE)
    expected = []
    for own in s.client_tests:
        images, labels = s.dataset.x_test[own], s.dataset.y_test[own]
        expected.append(s.scores(run.w, images, labels)[1].sum() / len(labels))
    assert last(run, "client_accuracy") == pytest.approx(expected)
    assert last(run, "client_accuracy_mean") == pytest.approx(np.mean(expected))
    assert last(run, "client_accuracy_std") == pytest.approx(np.std(expected))
    assert last(run, "client_accuracy_worst_decile") == pytest.approx(min(expected))
    assert last(run, "client_accuracy_jain") == pytest.approx(jain(expected))
    assert last(run, "client_sizes") == s.sizes.tolist() and sum(s.sizes) == 600
    assert last(run, "client_gradients") == 0
    # On all test images every client scores what the global model does.
    assert last(run, "all_client_accuracy") == pytest.approx([last(run, "test_accuracy")] * 10)
    assert last(run, "all_client_loss") == pytest.approx([last(run, "test_loss")] * 10)


def test_personal_models_are_what_is_measured_and_their_gradients_are_counted():
    run = play(BASE.but(methods=(FineTuning(epochs=3),)))
    assert last(run, "client_gradients") == 3 * 600
    assert last(run, "gradients") < 600  # those of the round's two clients
    assert last(run, "client_accuracy_mean") > np.mean(last(run, "all_client_accuracy"))
    assert run.series["client_accuracy"]["round"] == [1, 2]

import pytest
import torch
from examples import play

from fedlib import federation
from fedlib.experiment import Experiment
from fedlib.methods import FineTuning
from fedlib.methods.fine_tuning import loss
from fedlib.models import CNN
from fedlib.partitions import Dirichlet
from fedlib.spec import InputError

E = Experiment(
    train_images=200, clients=4, rounds=2, batch_size=20, partition=Dirichlet(alpha=0.5), momentum=0.5,
    weight_decay=0.01, model=CNN(channels=(4,), dense=(8,), norm="batch"), evaluate_every=3,
)  # fmt: skip


def personal(method, experiment=E, k=1, w=None):
    """The client and its model after the method's personal step from the weights `w`, by default the first ones."""
    s = federation.setting(experiment.but(methods=(method,)))
    client = federation.new_client(s, k, 3, s.w_init if w is None else w, {}, {}, experiment.lr)
    method.personal(client)
    return client, client.w.clone()


def test_the_federation_learns_as_without():
    run, plain = play(E.but(methods=(FineTuning(),))), play(E)
    assert torch.equal(run.w, plain.w)
    assert run.series == plain.series


def test_only_the_chosen_layers_change():
    start = federation.setting(E).w_init
    for layers in (("head",), ("conv1", "norm1"), ("*",)):
        client, w = personal(FineTuning(layers=layers, epochs=2))
        chosen = client.space.layout.select(*layers)
        assert torch.equal(w[~chosen], start[~chosen])
        assert (w[chosen] != start[chosen]).float().mean() > 0.5
        assert client.gradients == 2 * client.n


def test_a_step_is_a_gradient_step(quadratics):
    q = quadratics(h=[1.0, 3.0], a=[[1.0, 2.0], [-1.0, 0.0]], sizes=[20, 10])
    method = FineTuning(layers=("*",), steps=1, epochs=9, lr=0.1)
    client, w = personal(method, q.experiment())
    torch.testing.assert_close(w, 0.1 * 3.0 * q.a[1])
    assert client.gradients == 10


def test_as_many_steps_as_asked_for_even_if_they_take_more_epochs(quadratics):
    q = quadratics(h=[1.0, 3.0], a=[[1.0, 2.0], [-1.0, 0.0]], sizes=[20, 10])
    client, w = personal(FineTuning(layers=("*",), steps=7, epochs=2, lr=0.1), q.experiment())
    torch.testing.assert_close(w, (1 - 0.7**7) * q.a[1])
    assert client.gradients == 7 * 10


def test_early_stop_keeps_the_best_on_samples_it_does_not_train_on():
    client, w = personal(FineTuning(layers=("*",), held_back=0.3, epochs=30, patience=2))
    own = client.n - round(0.3 * client.n)
    assert client.gradients % own == 0 and 2 * own <= client.gradients <= 30 * own
    everything = torch.arange(client.n)
    assert loss(client, w, everything) < loss(client, client.w_start, everything)
    # A rate that spoils the model at once leaves it as it was.
    client, w = personal(FineTuning(layers=("*",), held_back=0.3, lr=1.0, patience=3), w=w)
    assert torch.equal(w, client.w_start)
    assert client.gradients == 3 * own


def test_a_client_with_one_sample_has_nothing_to_train_on(quadratics):
    q = quadratics(h=[1.0, 3.0], a=[[1.0, 2.0], [-1.0, 0.0]], sizes=[20, 1])
    client, w = personal(FineTuning(layers=("*",), held_back=0.5), q.experiment())
    assert torch.equal(w, client.w_start) and client.gradients == 0


def test_bad_input():
    with pytest.raises(InputError, match="one of the two"):
        FineTuning(steps=3, held_back=0.1)
    with pytest.raises(InputError, match="did you mean 'head'"):
        personal(FineTuning(layers=("heads",)))

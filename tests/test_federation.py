"""The round loop: independent of workers, exact to resume, clear about what cannot run."""

import copy

import numpy as np
import pytest
import torch

from fedlib import federation, seeds
from fedlib import workers as pools
from fedlib.experiment import Experiment
from fedlib.local import Diverged
from fedlib.methods import Method
from fedlib.models import CNN, Linear
from fedlib.partitions import Dirichlet, QuantitySkew
from fedlib.spec import InputError

SMALL = Experiment(
    train_images=600, clients=6, per_round=4, rounds=3, batch_size=20, model=CNN(channels=(4, 8), dense=(16,)),
    partition=Dirichlet(alpha=0.5), momentum=0.5,
)  # fmt: skip


def play(experiment, workers=1, state=None, until=None):
    pools.wait(workers)
    run = federation.begin(experiment, state, workers)
    for _ in federation.play(run, until):
        pass
    return run


@pytest.fixture(scope="module")
def reference():
    return play(SMALL)


@pytest.mark.parametrize("workers", [2, 4])
def test_the_number_of_workers_does_not_matter(reference, workers):
    run = play(SMALL, workers)
    assert torch.equal(run.w, reference.w)
    assert run.series == reference.series


def test_nor_does_how_soon_they_start(reference):
    """Some rounds are trained here, the others by workers."""
    pools.close()
    run = federation.begin(SMALL, workers=2)
    for _ in federation.play(run, 1):
        pass
    pools.wait(2)
    for _ in federation.play(run):
        pass
    assert torch.equal(run.w, reference.w)
    assert run.series == reference.series


def test_a_resumed_run_gives_the_same_numbers(reference):
    half = play(SMALL, until=2)
    run = play(SMALL, state=copy.deepcopy(half.state))
    assert torch.equal(run.w, reference.w)
    assert run.series == reference.series


class Doubled(Method):
    """Puts another update in the place of its own."""

    def finish(self, client):
        client.delta = 2 * client.delta


@pytest.mark.parametrize("methods", [(), (Doubled(),)])
def test_an_update_is_written_into_shared_memory(methods):
    e = SMALL.but(methods=methods)
    run = federation.begin(e)
    vectors = pools.Rows(2, len(run.w)).tensor
    vectors[-1].copy_(run.w)
    result = federation.train_client_shared(vectors, 0, e, 1, 1, {}, {}, ())
    alone = federation.train_client(e, 1, 1, run.w, {}, {}, ())
    assert result.delta is None
    assert torch.equal(vectors[0], alone.delta)


def test_bf16_is_close_to_fp32(reference):
    run = play(SMALL.but(precision="bf16"))
    assert run.series["train_loss"]["value"] != reference.series["train_loss"]["value"]
    assert run.series["train_loss"]["value"] == pytest.approx(reference.series["train_loss"]["value"], rel=0.02)


def test_one_client_is_sgd():
    """A federation of one client and one local step a round is plain gradient descent."""
    e = Experiment(train_images=100, clients=1, batch_size=None, rounds=4, lr=0.1, model=Linear())
    run = play(e)
    s = federation.setting(e)
    x = s.space.images(torch.from_numpy(s.dataset.x_train[s.train])).flatten(1)
    y = torch.from_numpy(s.dataset.y_train[s.train])
    names = ("head.weight", "head.bias")
    weight, bias = (s.space.layout.view(s.w_init.clone(), name).requires_grad_() for name in names)
    for _ in range(4):
        loss = torch.nn.functional.cross_entropy(x @ weight.T + bias, y)
        for p, g in zip((weight, bias), torch.autograd.grad(loss, (weight, bias)), strict=True):
            p.data -= 0.1 * g
    assert torch.allclose(s.space.layout.view(run.w, "head.weight"), weight, atol=1e-6)


def test_updates_are_weighted_by_samples():
    """One round of full-batch steps equals the sample-weighted mean of the clients' own steps."""
    skewed = QuantitySkew(ratio=10.0)
    e = Experiment(train_images=200, clients=3, batch_size=None, rounds=1, lr=0.1, model=Linear(), partition=skewed)
    run = play(e)
    s = federation.setting(e)
    assert len(set(s.sizes)) == 3
    # Equal steps from the same start: the sample-weighted mean of the clients' gradients is the gradient of all data.
    whole = play(e.but(clients=1, partition=Experiment().partition))
    assert torch.allclose(run.w, whole.w, atol=1e-6)


def test_running_statistics_are_averaged_by_samples_and_the_counter_is_left_alone():
    model, skewed = CNN(channels=(4, 4), dense=(), norm="batch"), QuantitySkew(ratio=10.0)
    e = Experiment(train_images=200, clients=3, batch_size=20, rounds=1, lr=0.1, model=model, partition=skewed)
    run, s = play(e), federation.setting(e)
    trained, ends = s.space.trained, []
    for k in range(3):
        client = federation.new_client(s, k, 1, s.w_init, {}, {}, e.lr)
        client.fit(client, methods=())
        ends.append(client.w[trained:].clone())
    mean = torch.tensor(s.sizes / s.sizes.sum(), dtype=torch.float32) @ torch.stack(ends)
    torch.testing.assert_close(run.w[trained:], mean)
    assert len(mean) == 2 * (4 + 4) and not torch.allclose(mean, torch.stack(ends).mean(0), rtol=1e-2)
    counters = [b for name, b in s.space.network.named_buffers() if name.endswith("num_batches_tracked")]
    assert len(counters) == 2 and not any(counters) and all(c.dtype == torch.int64 for c in counters)


def test_batches_are_a_permutation_and_keyed():
    from types import SimpleNamespace

    from fedlib.local import batches

    client = SimpleNamespace(n=23, batch_size=5)
    rng = seeds.numpy(0, "batches", 1, 7)
    first, second = ([b.tolist() for b in batches(client, epoch, rng)] for epoch in range(2))
    assert sorted(sum(first, [])) == list(range(23)) == sorted(sum(second, []))
    assert [len(b) for b in first] == [5, 5, 5, 5, 3]
    assert first != second
    assert [b.tolist() for b in batches(client, 0, seeds.numpy(0, "batches", 1, 7))] == first
    assert [b.tolist() for b in batches(client, 0, seeds.numpy(0, "batches", 2, 7))] != first


def test_the_holdout_is_balanced_and_kept_from_clients():
    s = federation.Setting(Experiment(holdout=200, train_images=1000, clients=5))
    held = set(s.holdout.tolist())
    assert len(held) == 200 and not held & set(np.concatenate(s.shards).tolist())
    assert np.bincount(s.dataset.y_train[s.holdout]).tolist() == [20] * 10
    assert np.bincount(s.dataset.y_train[s.train]).tolist() == [100] * 10


@pytest.mark.parametrize("fields, message", [
    ({"clients": 601, "per_round": 1}, "clients = 601"),
    ({"batch_size": 5000}, "batch_size = 5000, but the largest client has"),
    ({"holdout": 4000}, "train_images = 600 and holdout = 4000, but digits has 4000"),
    ({"train_images": 5000}, "5000"),
    ({"dataset": "cifar11"}, "did you mean 'cifar10'"),
])
def test_what_cannot_run_is_refused_before_training(fields, message):
    with pytest.raises(InputError) as error:
        federation.check(SMALL.but(**fields))
    assert message in str(error.value)


def test_divergence_names_round_and_client():
    with pytest.raises(Diverged, match=r"round 1, client \d: the loss is (nan|inf)"):
        play(SMALL.but(lr=1e6, momentum=0.9))


def test_a_value_that_is_no_number_stops_the_run_when_it_comes():
    run = federation.begin(SMALL)
    run.round = 7
    run.add("fine", {"a": [1.0, 2], "b": "nan", "c": None})
    for value in (float("nan"), [1.0, [np.inf]], {"a": np.array([0.0, np.nan])}, torch.tensor(-np.inf)):
        with pytest.raises(Diverged, match="round 7: bad is not finite"):
            run.add("bad", value)
    assert "bad" not in run.series


def test_a_batch_of_one_and_a_client_with_one_sample():
    model = CNN(channels=(4,), dense=(), norm="batch")
    e = SMALL.but(partition=QuantitySkew(ratio=100.0), clients=100, per_round=100, rounds=1, model=model)
    assert federation.Setting(e).sizes.min() == 1
    assert np.isfinite(play(e).series["train_loss"]["value"]).all()

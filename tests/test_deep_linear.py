"""The deep linear network: its gradients against autograd, balance, and rank against label skew."""

import numpy as np
import pytest
import torch

from fedlib import deep_linear, seeds
from fedlib.measures.spectrum import effective_rank
from fedlib.spec import InputError

UNIFORM = np.full(8, 1 / 8)
ONE = np.eye(8)[2]


def test_one_step_is_autograds():
    fractions, seed, rate = [0.5, 0.3, 0.2], 3, 0.1
    _, after = deep_linear.train(fractions, seed, layers=3, width=5, samples=40, steps=1, rate=rate)
    _, before = deep_linear.train(fractions, seed, layers=3, width=5, samples=40, steps=0, rate=rate)
    rng = seeds.numpy(seed, "deep linear network")
    x, y = deep_linear.labelled(fractions, 40, 5, rng)
    from scipy.stats import ortho_group

    for _ in range(3):
        ortho_group.rvs(5, random_state=rng)
    head = torch.from_numpy(0.1 * rng.standard_normal((3, 5)))
    weights = [torch.from_numpy(w).requires_grad_() for w in before]
    scores = head @ weights[2] @ weights[1] @ weights[0] @ torch.from_numpy(x)
    torch.nn.functional.cross_entropy(scores.T, torch.from_numpy(y.argmax(0))).backward()
    for w, ours in zip(weights, after, strict=True):
        np.testing.assert_allclose(ours, (w.detach() - rate * w.grad).numpy(), rtol=1e-10, atol=1e-12)


def test_weights_stay_balanced():
    _, weights = deep_linear.train(UNIFORM, 0, steps=400, rate=0.01)
    for lower, upper in zip(weights, weights[1:], strict=False):
        assert np.abs(upper.T @ upper - lower @ lower.T).max() < 0.01 * np.abs(lower @ lower.T).max()


@pytest.mark.parametrize("seed", range(3))
def test_label_skew_lowers_the_rank(seed):
    even, skewed = (effective_rank(deep_linear.train(f, seed)[0][-1] ** 2) for f in (UNIFORM, ONE))
    assert skewed < 0.7 * even


def test_classes_have_their_shares():
    _, y = deep_linear.labelled([0.5, 0.25, 0.25, 0], 200, 4, np.random.default_rng(0))
    assert y.sum(1).tolist() == [100, 50, 50, 0]


@pytest.mark.parametrize("fractions", [[0.5, 0.4], [1.2, -0.2], [0.2] * 5])
def test_bad_fractions(fractions):
    with pytest.raises(InputError, match="fractions"):
        deep_linear.labelled(fractions, 10, 4, np.random.default_rng(0))

"""FedDecorr against the definitions written out plainly, and the paper's proposition 1."""

import pytest
import torch
from examples import BASE, play
from hypothesis import given
from hypothesis import strategies as st

from fedlib.methods import MOON, FedDecorr
from fedlib.methods.feddecorr import decorrelation
from fedlib.partitions import Iid
from fedlib.spec import InputError

SHAPES = st.tuples(st.integers(5, 40), st.integers(2, 40), st.integers(0, 2**31))


def draw(n: int, d: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(n, d, generator=generator, dtype=torch.float64)
    return 3 + z @ torch.randn(d, d, generator=generator, dtype=torch.float64)


def official_code(z: torch.Tensor) -> float:
    """The official code's steps, as loops: standardise, M = Z^T Z, mean of M^2 off the diagonal, divided by N."""
    n, d = z.shape
    z = (z - z.mean(0)) / torch.sqrt(1e-8 + z.var(0, unbiased=True))
    m = z.T @ z
    off = [float(m[i, j]) ** 2 for i in range(d) for j in range(d) if i != j]
    return sum(off) / len(off) / n


@given(SHAPES)
def test_paper_scaling_is_the_correlation_matrix(shape):
    z = draw(*shape)
    k = torch.corrcoef(z.T)
    d = z.shape[1]
    assert float(decorrelation(z, "paper")) == pytest.approx(float(k.square().sum()) / d**2, rel=1e-5)
    # Proposition 1: sum_i (lambda_i - mean)^2 = ||K||_F^2 - d, so that the loss flattens the spectrum.
    spread = (torch.linalg.svdvals(k) - 1).square().sum()
    assert float(decorrelation(z, "paper")) * d**2 - d == pytest.approx(float(spread), rel=1e-4, abs=1e-5 * d**2)


@given(SHAPES)
def test_official_scaling_is_the_official_code(shape):
    z = draw(*shape)
    assert float(decorrelation(z, "official")) == pytest.approx(official_code(z), rel=1e-6)


def test_the_official_scaling_is_about_n_times_the_papers_without_its_diagonal():
    z = draw(64, 200, 0)
    ratio = float(decorrelation(z, "official")) / (float(decorrelation(z, "paper")) - 1 / 200)
    assert ratio == pytest.approx(64, rel=0.05)


@pytest.mark.parametrize("scaling", ["paper", "official"])
def test_dead_and_single_dimensions_are_finite(scaling):
    z = draw(10, 5, 0).float()
    z[:, 2] = 1.0
    z.requires_grad_()
    decorrelation(z, scaling).backward()
    assert torch.isfinite(z.grad).all()
    assert torch.isfinite(decorrelation(draw(10, 1, 0), scaling))


def test_a_batch_of_one_adds_nothing():
    """Clients with batches of one are FedAvg; batches of two are not."""
    ones = BASE.but(batch_size=1, rounds=1, train_images=30, clients=2, per_round=None, partition=Iid())
    assert torch.equal(play(ones).w, play(ones.but(methods=(FedDecorr(),))).w)
    twos = ones.but(batch_size=2)
    assert not torch.equal(play(twos).w, play(twos.but(methods=(FedDecorr(),))).w)


def test_layer_of_the_representation_is_the_default():
    runs = [play(BASE.but(rounds=2, methods=(FedDecorr(layer=layer),))) for layer in (None, "fc1_relu", "conv2")]
    assert torch.equal(runs[0].w, runs[1].w)
    assert not torch.equal(runs[0].w, runs[2].w)
    # The second network that MOON computes with does not disturb what was captured.
    both = [play(BASE.but(rounds=2, methods=(MOON(mu=0.0), FedDecorr(layer=layer)))) for layer in (None, "fc1_relu")]
    assert torch.equal(both[0].w, both[1].w)


def test_unknown_layer():
    with pytest.raises(
        InputError, match=r"unknown layer 'conv9'; did you mean 'conv\d'\? \(allowed: conv1, conv2, fc1"
    ):
        play(BASE.but(rounds=1, methods=(FedDecorr(layer="conv9"),)))

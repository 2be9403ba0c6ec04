"""Distances and the streamed mean cosine against all pairs."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from fedlib import federation
from fedlib.measures.drift import Drift, distance


def measured(run, deltas, distances):
    measure = Drift()
    scratch = measure.begin(run)
    for k, delta in enumerate(deltas):
        measure.observe(scratch, k, 5, delta, {})
    return measure.finish(scratch, run, None, {k: {"distance": d} for k, d in enumerate(distances)})


def test_mean_cosine_is_that_over_all_pairs(run):
    generator = torch.Generator().manual_seed(0)
    deltas = [(k + 1) * torch.randn(len(run.w), generator=generator) + 0.3 for k in range(5)]
    pairs = [float(F.cosine_similarity(a, b, dim=0)) for a, b in itertools.combinations(deltas, 2)]
    values = measured(run, deltas, [1.0, 2.0, 3.0, 4.0, 10.0])
    assert values["update_cosine"] == pytest.approx(sum(pairs) / 10, rel=1e-4)
    assert (values["drift"], values["drift_max"]) == (4, 10)
    assert values["drift_relative"] == pytest.approx(4 / float(run.w.norm()))


def test_limits(run):
    delta = torch.randn(len(run.w), generator=torch.Generator().manual_seed(1))
    assert measured(run, [delta, 3 * delta], [1.0, 1.0])["update_cosine"] == pytest.approx(1, rel=1e-12)
    assert measured(run, [delta, -delta], [1.0, 1.0])["update_cosine"] == pytest.approx(-1, rel=1e-12)
    assert "update_cosine" not in measured(run, [delta, 0 * delta], [1.0, 1.0])  # a zero has no direction


def test_distance_is_that_of_the_weights_whatever_is_sent(run):
    client = federation.new_client(run.setting, 0, 1, run.w, {}, {}, 0.1)
    client.w[:4] += torch.tensor([3.0, 0, 4.0, 0])
    client.delta = torch.zeros_like(run.w)
    assert distance(client) == pytest.approx(5, rel=1e-6)

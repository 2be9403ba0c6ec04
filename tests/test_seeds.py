"""Generators depend on all of their key and on nothing else."""

import itertools

import pytest
import torch

from fedlib import seeds

KEYS = list(itertools.product((0, 1), ("batches", "select"), (0, 1, 2), (0, 1, 7)))


def test_every_key_has_its_own_stream():
    assert len({seeds.numpy(*key).integers(2**63) for key in KEYS}) == len(KEYS)
    assert len({int(torch.randint(2**62, (1,), generator=seeds.torch_(*key))) for key in KEYS}) == len(KEYS)


@pytest.mark.parametrize("key", KEYS[:4])
def test_the_same_key_gives_the_same_draws_whatever_happens_elsewhere(key):
    first = seeds.numpy(*key).random(3)
    torch.manual_seed(5)
    seeds.numpy(9, "other").random(100)
    assert (seeds.numpy(*key).random(3) == first).all()

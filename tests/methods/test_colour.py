"""Every method and part runs on images with three channels, whose pixels are normalised channel by channel."""

from dataclasses import replace

import numpy as np
import pytest
from examples import experiments, play

from fedlib import datasets, federation
from fedlib.methods import Condensed, DataSharing

CASES = experiments()


@pytest.fixture
def coloured(monkeypatch, tmp_path):
    """Digits of 14 x 14 pixels in three tints, in the place of the digits."""
    grey = datasets.load("digits")
    tints = np.array([1.0, 0.6, 0.3])

    def tinted(x):
        return np.rint(x[:, ::2, ::2] * tints).astype(np.uint8)

    mean, std = (tuple(float(one[0]) * tints) for one in (grey.mean, grey.std))
    colour = replace(grey, x_train=tinted(grey.x_train), x_test=tinted(grey.x_test), mean=mean, std=std)
    monkeypatch.setattr(datasets, "load", lambda name: colour)
    monkeypatch.chdir(tmp_path)  # what is kept in the cache is made of other images
    federation.setting.cache_clear()
    yield colour
    federation.setting.cache_clear()


@pytest.mark.parametrize("name", CASES)
def test_runs_on_colour_images(name, coloured):
    run = play(CASES[name].but(rounds=1))
    assert run.setting.dataset is coloured and np.isfinite(run.series["train_loss"]["value"]).all()


def test_condensed_images_keep_to_their_channels(coloured):
    """A tint of .3 leaves no pixel above 77; condensing starts from real images and hardly moves them."""
    copy = Condensed(pool=20, iterations=1, lr_image=1e-3, init="real")
    e = CASES["FedAvg"].but(train_images=200, holdout=200, rounds=1, methods=(DataSharing(beta=0.05, copies=(copy,)),))
    s = federation.setting(e)
    drawn = e.methods[0].reserves(s)[:10]
    x = e.methods[0].shared(s).x
    assert np.abs(x.astype(int) - s.dataset.x_train[drawn]).max() <= 2
    assert x[..., 2].max() <= 80 < x[..., 0].max()

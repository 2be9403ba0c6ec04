import numpy as np
import pytest
import torch
import torch.nn.functional as F
from examples import ONE_CLASS
from torch import nn

from fedlib import federation, seeds
from fedlib.methods import Condensed, DataSharing
from fedlib.methods.condensation import distance
from fedlib.models import CNN

E = ONE_CLASS.but(train_images=200, holdout=200, model=CNN(channels=(8,), dense=(16,)))
BETA = 0.05  # 10 images, one of each class
COPY = Condensed(pool=20, iterations=150)


@pytest.fixture
def condensed(tmp_path_factory, monkeypatch):
    """The setting, and its shared set condensed, in a cache of the tests."""
    monkeypatch.chdir(tmp_path_factory.getbasetemp())
    method = DataSharing(beta=BETA, copies=(COPY,))
    s = federation.setting(E.but(methods=(method,)))
    return s, method, method.shared(s)


def test_distance_is_by_output_rows_and_leaves_one_dimensional_tensors_out():
    a = (torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]]), torch.tensor([1.0, 2.0]))
    b = (torch.tensor([[3.0, 0.0], [1.0, 0.0], [-1.0, -1.0]]), torch.tensor([-5.0, 1.0]))
    assert float(distance(a, b)) == pytest.approx(0 + 1 + 2, abs=1e-5)
    kernel = torch.randn(4, 3, 5, 5, generator=seeds.torch_(0, "test"))
    assert float(distance((kernel,), (-kernel,))) == pytest.approx(8, abs=1e-4)  # 4 filters


def matching_loss(s, method, x, y) -> float:
    """D at fresh networks that condensation has not seen, summed over the classes."""
    drawn, total = method.reserves(s), 0.0
    labels = s.dataset.y_train[drawn]
    for k in range(5):
        torch.manual_seed(1000 + k)
        network = s.experiment.model.build((28, 28, 1), 10)
        theta = tuple(network.parameters())

        def gradient(images, targets, network=network, theta=theta):
            scores = network(s.space.images(torch.from_numpy(images)))
            return torch.autograd.grad(F.cross_entropy(scores, torch.from_numpy(targets)), theta)

        for c in range(10):
            real = s.dataset.x_train[drawn[labels == c]]
            total += float(distance(gradient(x[y == c], y[y == c]), gradient(real, labels[labels == c])))
    return total / 5


def accuracy(s, x, y) -> float:
    """Mean test accuracy of fresh networks trained on ten images alone."""
    found = []
    for k in range(4):
        torch.manual_seed(2000 + k)
        network: nn.Module = s.experiment.model.build((28, 28, 1), 10)
        optimizer = torch.optim.SGD(network.parameters(), 0.05)
        images = s.space.images(torch.from_numpy(x))
        for _ in range(100):
            optimizer.zero_grad()
            F.cross_entropy(network(images), torch.from_numpy(y)).backward()
            optimizer.step()
        found.append(s.scores(s.space.layout.flatten(network), *s.split("test"))[1].sum() / 1000)
    return float(np.mean(found))


def test_condensed_images_match_gradients_and_train_better_than_random_ones(condensed):
    s, method, g = condensed
    drawn = method.reserves(s)
    random = s.dataset.x_train[drawn[:10]], s.dataset.y_train[drawn[:10]]
    assert np.array_equal(random[1], np.arange(10)) and np.array_equal(g.y, np.arange(10))
    noise = np.random.default_rng(0).integers(0, 256, g.x.shape, np.uint8)
    ours, start = (matching_loss(s, method, x, g.y) for x in (g.x, noise))
    assert ours < 0.8 * start
    assert accuracy(s, g.x, g.y) > accuracy(s, *random) + 0.05
    from_real = DataSharing(beta=BETA, copies=(Condensed(pool=20, iterations=60, init="real"),)).shared(s)
    assert matching_loss(s, method, from_real.x, from_real.y) < matching_loss(s, method, *random)


def test_it_is_the_same_anywhere_and_made_once(condensed, monkeypatch):
    s, method, g = condensed
    again = DataSharing(beta=BETA, alpha=0.5, copies=(COPY,))  # another method, the same copy
    monkeypatch.setattr(Condensed, "condense", lambda *_: pytest.fail("made again"))
    assert np.array_equal(again.shared(federation.Setting(E.but(methods=(again,)))).x, g.x)


def test_validation_has_none_of_the_images_condensed(condensed):
    s, method, g = condensed
    assert len(method.reserves(s)) == 200 and len(s.validation) == 0 and len(g.y) == 10

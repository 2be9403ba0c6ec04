import numpy as np
import pytest

from fedlib.methods import LocalEpochs
from fedlib.spec import InputError

H, A = [1.0] * 6, [[1.0, 0.0]] * 6
SIZES = [10, 20, 30, 40, 50, 60]


def test_epochs_are_drawn_for_each_client_and_round(quadratics):
    q = quadratics(H, A, SIZES)
    run = q.play(rounds=100, lr=0.01, methods=(LocalEpochs(low=2, high=4),))
    mean = np.mean(run.series["gradients"]["value"]) / sum(SIZES)
    assert mean == pytest.approx(3, abs=4 * np.sqrt(2 / 3 / 100 / 3))  # weights of the sizes: about 3 clients' worth
    assert len(set(run.series["gradients"]["value"])) > 20
    run = q.play(rounds=1, methods=(LocalEpochs(low=3, high=3),))
    assert run.series["gradients"]["value"] == [3 * sum(SIZES)]


def test_bad_input():
    with pytest.raises(InputError, match="LocalEpochs.high = 1"):
        LocalEpochs(low=2, high=1)

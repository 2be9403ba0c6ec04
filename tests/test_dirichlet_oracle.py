"""The Dirichlet partition against flwr-datasets' `DirichletPartitioner`, in distribution and draw by draw.

Flower's partitioner is the same construction (shares of each class over the clients) with names of its own: our minimum
is its `min_partition_size`, and what FedDecorr's code does with full clients is its `self_balancing`, which is off by
default there. It gives up after 10 repetitions where we go on, and a client is full to it above the mean size, to us at
it: neither occurs with the labels below.
"""

from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from fedlib.measures.emd import emd
from fedlib.partitions import Dirichlet, counts

CLIENTS, ALPHA, DRAWS, LEVEL = 5, 0.5, 60, 0.01
LABELS = np.repeat(np.arange(10), [100] * 9 + [103])  # 1,003 samples: no client can hold exactly the mean of 200.6
pytestmark = pytest.mark.filterwarnings("ignore:The specified min_partition_size")  # it repeats the draw, as we do


@pytest.fixture(scope="module")
def flower(tmp_path_factory) -> Callable[..., np.ndarray]:
    """``flower(seed, alpha, ...)``: the samples of each class that each client gets, (clients, classes)."""
    with pytest.MonkeyPatch.context() as patch:  # read when `datasets` is imported: nothing is asked of the network
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("FLWR_TELEMETRY_ENABLED", "0")
        patch.setenv("HF_HOME", str(tmp_path_factory.mktemp("huggingface")))
        from datasets import Dataset
        from flwr_datasets.partitioner import DirichletPartitioner
    dataset = Dataset.from_dict({"label": LABELS})

    def draw(seed: int, alpha: float, self_balancing: bool = True) -> np.ndarray:
        partitioner = DirichletPartitioner(
            CLIENTS, "label", alpha, min_partition_size=10, self_balancing=self_balancing, shuffle=False, seed=seed
        )
        partitioner.dataset = dataset
        return np.stack([np.bincount(partitioner.load_partition(k)["label"], minlength=10) for k in range(CLIENTS)])

    return draw


def ours(seed: int, alpha: float, **fields) -> np.ndarray:
    shards = Dirichlet(alpha=alpha, **fields).split(LABELS, CLIENTS, np.random.default_rng(seed))
    return counts(LABELS, shards, 10)


def statistics(tables: list[np.ndarray]) -> dict[str, list[float]]:
    """One number per draw, so that the numbers of different draws are independent."""
    return {
        "deviation of the clients' sizes": [t.sum(1).std() for t in tables],
        "largest share of a label in a client": [(t / t.sum(1, keepdims=True)).max(1).mean() for t in tables],
        "largest share of a client in a label": [(t / t.sum(0)).max(0).mean() for t in tables],
        "labels of a client": [(t > 0).sum(1).mean() for t in tables],
        "mean EMD": [emd(t).mean() for t in tables],
    }


def p_value(some: list[np.ndarray], others: list[np.ndarray]) -> float:
    """Of the hypothesis that both were drawn alike: the least of two-sample Kolmogorov-Smirnov tests, by Bonferroni."""
    a, b = statistics(some), statistics(others)
    return min(1.0, len(a) * min(stats.ks_2samp(a[name], b[name]).pvalue for name in a))


@pytest.fixture(scope="module")
def theirs(flower) -> list[np.ndarray]:
    return [flower(seed, ALPHA) for seed in range(DRAWS)]


OWN = range(DRAWS, 2 * DRAWS)
"""Other seeds than theirs."""


def test_drawn_alike(theirs):
    assert p_value([ours(seed, ALPHA) for seed in OWN], theirs) > LEVEL


def over_classes(seed: int) -> np.ndarray:
    """Shares of each client over the classes, instead of those of each class over the clients."""
    return np.rint(200 * np.random.default_rng(seed).dirichlet(np.full(10, ALPHA), CLIENTS))


@pytest.mark.parametrize("other", [
    lambda seed: ours(seed, 1.5 * ALPHA), lambda seed: ours(seed, ALPHA / 1.5), over_classes,
    lambda seed: ours(seed, ALPHA, balanced=True),
], ids=["larger alpha", "smaller alpha", "over classes", "balanced"])  # fmt: skip
def test_the_test_sees_another_definition(theirs, other):
    assert p_value([other(seed) for seed in OWN], theirs) < LEVEL


def test_it_is_self_balancing(flower, theirs):
    assert p_value([flower(seed, ALPHA, self_balancing=False) for seed in OWN], theirs) < LEVEL


@pytest.mark.parametrize("alpha", [0.3, 1.0, 10.0])
def test_the_same_generator_gives_the_same_table(flower, alpha):
    """To one sample, where the two add the shares up in another order."""
    for seed in range(10):
        assert np.abs(ours(seed, alpha) - flower(seed, alpha)).max() <= 1

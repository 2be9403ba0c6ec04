"""How much of a shared mask's penalty survives averaging: gradient diversity and its inverse.

    D_S = sum_k ||Delta_k||^2 / ||sum_k Delta_k||^2                      gradient diversity (Yin et al. 2018)
    survival = 1 / D_S = ||mean Delta||^2 / ((1 / K^2) sum_k ||Delta_k||^2)

(Yan et al. 2026, arXiv 2608.23286, Eqs. 3 and 8): K for equal updates of K clients, 1 for orthogonal ones, below 1
where they cancel. Weighted by p_k = n_k / sum n it is ||sum p_k Delta_k||^2 / sum p_k^2 ||Delta_k||^2; the paper
reports this convention without printing it, the form is ours.

Signal and noise, Delta_k = mu + eps_k (Eqs. 9-14), with A = mean ||Delta_k||^2 and B = ||mean Delta||^2:

    sigma^2 = (A - B) / (1 - 1 / K),   ||mu||^2 = A - sigma^2,   1 / D_S = (K r + 1) / (r + 1),   r = ||mu||^2 / sigma^2

With both estimated from the same K updates the last line is an identity, K B / A, and cannot fail. The prediction here
is therefore made from groups: each half of the cohort gives its own mu^2 and sigma^2, and their means predict the
survival of the whole.

Cost in a measured round: three vectors of the model's size and a few passes over each update; with `gradients`, also
one pass of fp32 gradients over each client's samples (on its worker) and a second set of vectors for each kind.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedlib import seeds
from fedlib.measures.base import Measure, Values
from fedlib.measures.objective import Objective
from fedlib.methods.base import Client, Server
from fedlib.models import Layout
from fedlib.spec import InputError

ALL = "all"
"""Name of all trained weights together, beside those of the layers."""


def survival(mean_square: float, square_of_mean: float, k: int) -> float:
    """1 / D_S from A = mean ||Delta_k||^2 and B = ||mean Delta||^2 of k updates: k B / A. A must be positive."""
    return k * square_of_mean / mean_square


def signal_and_noise(mean_square: float, square_of_mean: float, k: int) -> tuple[float, float]:
    """Unbiased estimates of ||mu||^2 (which can be negative) and sigma^2 = E ||eps||^2 from k >= 2 updates."""
    noise = (mean_square - square_of_mean) / (1 - 1 / k)
    return mean_square - noise, noise


def predicted(signal: float, noise: float, k: int) -> float:
    """Survival among k clients by the signal-plus-noise model, (k r + 1) / (r + 1) with r = signal / noise."""
    return (k * signal + noise) / (signal + noise)


class Sums:
    """Running sums over the updates of a round, whatever their number: all that diversity needs."""

    def __init__(self, layout: Layout) -> None:
        self.parts = {ALL: [slice(0, layout.trained)]}
        for name, (offset, shape) in layout.places.items():
            if offset < layout.trained:
                layer = name.rsplit(".", 1)[0].removeprefix("body.")
                self.parts.setdefault(layer, []).append(slice(offset, offset + shape.numel()))
        self.halves = [torch.zeros(layout.trained, dtype=torch.float64) for _ in range(2)]
        self.weighted = torch.zeros(layout.trained, dtype=torch.float64)
        self.squares = [dict.fromkeys(self.parts, 0.0) for _ in range(2)]
        self.weighted_squares = dict.fromkeys(self.parts, 0.0)
        self.counts = [0, 0]

    def add(self, weight: float, delta: Tensor) -> None:
        """One more update (at least `trained` long), and its weight in the average."""
        delta = delta[: len(self.weighted)].double()
        half = sum(self.counts) % 2
        self.counts[half] += 1
        self.halves[half] += delta
        self.weighted.add_(delta, alpha=weight)
        for name in self.parts:
            square = self._square(delta, name)
            self.squares[half][name] += square
            self.weighted_squares[name] += weight**2 * square

    def _square(self, v: Tensor, name: str) -> float:
        return sum(float(v[part] @ v[part]) for part in self.parts[name])

    def moments(self, name: str = ALL, half: int | None = None) -> tuple[float, float, int]:
        """A, B and the number of updates, of a layer; of every other update only where `half` is 0 or 1."""
        halves = (0, 1) if half is None else (half,)
        k = sum(self.counts[h] for h in halves)
        total = self.halves[0] + self.halves[1] if half is None else self.halves[half]
        return sum(self.squares[h][name] for h in halves) / k, self._square(total, name) / k**2, k

    def values(self, suffix: str = "") -> Values:
        """The round's values. Layers that no client changed have none; nor has a round without any change, or with one
        client."""
        moved = [name for name in self.parts if self.weighted_squares[name] > 0]
        if ALL not in moved or sum(self.counts) < 2:
            return {}
        layers = {name: survival(*self.moments(name)) for name in moved}
        weighted = {name: self._square(self.weighted, name) / self.weighted_squares[name] for name in moved}
        mean_square, square_of_mean, k = self.moments()
        signal, noise = signal_and_noise(mean_square, square_of_mean, k)
        result = {
            "survival": layers.pop(ALL),
            "survival_weighted": weighted.pop(ALL),
            "survival_layers": layers,
            "survival_weighted_layers": weighted,
            "survival_signal": signal,
            "survival_noise": noise,
        }
        if square_of_mean > 0:
            result["diversity"] = mean_square / (k * square_of_mean)
        if min(self.counts) >= 2:
            estimates = [signal_and_noise(*self.moments(half=half)) for half in (0, 1)]
            signal, noise = (sum(values) / 2 for values in zip(*estimates, strict=True))
            if signal + noise > 0:
                result["survival_predicted"] = predicted(signal, noise, k)
        return {name + suffix: value for name, value in result.items()}


class Survival(Measure):
    """Diversity of the clients' updates, or of their gradients too, and what it leaves of a shared mask's penalty.

    Series: ``survival`` = 1 / D_S and ``survival_weighted``, both also by layer (``survival_layers``,
    ``survival_weighted_layers``); ``diversity`` = D_S; ``survival_signal`` = ||mu||^2 and ``survival_noise`` = sigma^2
    (square of the weights' units); ``survival_predicted`` by the signal-plus-noise model, from halves of the cohort,
    where it has at least four clients. With `gradients` the same again for one gradient per client at the global
    weights, of a mini-batch (``survival_batch_gradient``, ...) and of all samples (``survival_full_gradient``, ...).
    A round in which no client changed anything, or only one took part, has no value, and where updates cancel exactly
    D_S has none.
    """

    gradients: bool = False
    """Whether to measure single gradients at the global weights too: about one more local epoch a measured round."""

    def check(self, experiment: Any) -> None:
        if experiment.cohort < 2:
            raise InputError(f"Survival with {experiment.cohort} client a round (allowed: per_round of at least 2)")

    def begin(self, run: Any) -> dict[str, Any]:
        kinds = ("", "_batch_gradient", "_full_gradient") if self.gradients else ("",)
        return {kind: Sums(run.setting.space.layout) for kind in kinds}

    def client(self, client: Client) -> Values:
        if not self.gradients:
            return {}
        rng = seeds.numpy(client.seed, "single gradient", client.round, client.index)
        batch = torch.from_numpy(rng.choice(client.n, min(client.batch_size, client.n), replace=False))
        full = Objective(client.space, client.x, client.y).gradient(client.w_start, training=True)
        # A batch of all samples is the full batch, to the last bit.
        part = Objective(client.space, client.x[batch], client.y[batch]) if len(batch) < client.n else None
        return {
            "_batch_gradient": full if part is None else part.gradient(client.w_start, training=True),
            "_full_gradient": full,
        }

    def observe(self, scratch: dict[str, Any], index: int, weight: float, delta: Tensor, values: Values) -> None:
        for kind, sums in scratch.items():
            sums.add(weight, values.pop(kind) if kind else delta)

    def finish(self, scratch: dict[str, Any], run: Any, server: Server, clients: dict[int, Values]) -> Values:
        return {name: value for kind, sums in scratch.items() for name, value in sums.values(kind).items()}

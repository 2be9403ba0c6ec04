"""SCAFFOLD on clients with quadratic objectives, as the paper has it and as code in public repositories has it.

Client i has F_i(w) = h_i/2 (w - a_i)^2, all clients count alike and take K full-batch steps a round. The optimum is
known, so it can be seen whether a rule reaches it. Where eta h_i K is small, a client's control variate becomes

    c_i+ = c_i - c + m (g_i - c_i + c)

with m the length of the round's path over K eta |g_i - c_i + c|, which the paper's formula takes to be 1. The part of
c_i in which clients differ is multiplied by 1 - m in a round: the rule converges only for 0 < m < 2. Momentum beside
the correction has c_i+ = m g_i, which is stable, but the correction acts at once and the momentum later: clients leave
the global weight and come back, and what they average is not the gradient there, so that it ends off the optimum.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from fedlib.methods.fednova import norm

Variant = Literal[
    "FedAvg", "FedAvg with momentum", "SCAFFOLD", "momentum beside", "momentum within", "K per epoch"
]  # fmt: skip
"""``momentum beside``: y <- y - eta v - eta (c - c_i), v the momentum of g_i alone. ``momentum within``: v is that of
g_i - c_i + c, and the update is divided by K eta all the same. ``K per epoch``: divided by the number of epochs, not of
steps."""


def gain(variant: Variant, steps: int, momentum: float, epochs: int) -> float:
    """m of the rules that have one, at vanishing curvature: 1 for the paper's."""
    return {"momentum within": norm(steps, momentum) / steps, "K per epoch": steps / epochs}.get(variant, 1.0)


def distances(
    variant: Variant, rounds: int, h: list[float], a: list[float], steps: int, lr: float, momentum: float = 0.0,
    epochs: int = 1,
) -> np.ndarray:  # fmt: skip
    """Distance of the global weight from the optimum after each round, (rounds,), starting at w = 0.

    `momentum` acts in the variants whose name says so, `epochs` are those that `steps` are spread over.
    """
    h, a = np.asarray(h, float), np.asarray(a, float)
    optimum = (h * a).sum() / h.sum()
    w, c_i, found = 0.0, np.zeros(len(h)), []
    rho = momentum if "momentum" in variant else 0.0
    for _ in range(rounds):
        correction = np.zeros(len(h)) if variant.startswith("FedAvg") else c_i.mean() - c_i
        y, v = np.full(len(h), w), np.zeros(len(h))
        for _ in range(steps):
            v = rho * v + h * (y - a) + (correction if variant != "momentum beside" else 0)
            y = y - lr * (v + (correction if variant == "momentum beside" else 0))
        c_i = c_i - c_i.mean() + (w - y) / ((epochs if variant == "K per epoch" else steps) * lr)
        w = y.mean()
        found.append(abs(w - optimum))
    return np.array(found)

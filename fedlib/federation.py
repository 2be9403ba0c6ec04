"""The round loop: select clients, train them, average their updates, measure. There is one."""

from __future__ import annotations

import functools
import itertools
import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedlib import batched, datasets, local, partitions, seeds, workers
from fedlib.experiment import Experiment
from fedlib.measures.base import Values
from fedlib.methods.base import Client, Server, State, overriding
from fedlib.spec import InputError

CHUNK = 2000
"""Images in one evaluation task; fixed, so that the sums do not depend on the number of workers."""

# ---------------------------------------------------------------- what every process builds from an experiment


class Setting:
    """An experiment made concrete: its images, who holds which, and a network. The same in every process."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = e = experiment
        self.dataset = datasets.load(e.dataset)
        self.classes = len(self.dataset.classes)
        self.train, self.holdout = self._divide()
        labels = self.dataset.y_train[self.train]
        if e.partition.disjoint and e.clients > len(labels):
            raise InputError(
                f"clients = {e.clients}, but there are only {len(labels)} training images (allowed: 1 to {len(labels)})"
            )
        rng = seeds.numpy(e.seed, "partition")
        shards = e.partition.split(labels, e.clients, rng, self.dataset.site_train[self.train])
        self.shards = [self.train[shard] for shard in shards]
        self.sizes = np.array([len(shard) for shard in self.shards])
        if e.batch_size is not None and e.batch_size > self.sizes.max():
            raise InputError(
                f"batch_size = {e.batch_size}, but the largest client has {self.sizes.max()} samples "
                f"(allowed: 1 to {self.sizes.max()}, or None for all samples of a client)"
            )
        for part in (*e.methods, *e.measures):
            part.check(e)
        network = e.model.initial(self.dataset.x_train.shape[1:], self.classes, seeds.numpy(e.seed, "init"))
        shared = [method.reserves(self) for method in overriding(e.methods, "reserves")]
        self.validation = np.setdiff1d(self.holdout, np.concatenate(shared)) if shared else self.holdout
        self.space = local.Workspace(network, self.dataset.mean, self.dataset.std, e.precision)
        self.w_init = self.space.w.clone()
        for method in overriding(e.methods, "check_setting"):
            method.check_setting(self)

    def _divide(self) -> tuple[np.ndarray, np.ndarray]:
        """Indices of the clients' images and of the server's; a part has each class in proportion to its size."""
        e, labels = self.experiment, self.dataset.y_train
        wanted = (e.train_images or len(labels) - e.holdout) + e.holdout
        if wanted > len(labels) or e.holdout >= len(labels):
            raise InputError(
                f"train_images = {e.train_images} and holdout = {e.holdout}, but {e.dataset} has {len(labels)} "
                f"training images (allowed: together at most as many, and one for the clients at least)"
            )
        if not e.holdout and e.train_images is None:
            return np.arange(len(labels)), np.arange(0)
        rng = seeds.numpy(e.seed, "divide")
        # Interleave the classes, so that every prefix has them in proportion.
        rank = np.empty(len(labels))
        for label in np.unique(labels):
            own = np.flatnonzero(labels == label)
            rank[rng.permutation(own)] = (np.arange(len(own)) + rng.random()) / len(own)
        order = np.argsort(rank, kind="stable")
        return np.sort(order[e.holdout : wanted]), np.sort(order[: e.holdout])

    def samples(self, client: int, round: int) -> tuple[np.ndarray, np.ndarray]:
        """What the client trains on in this round: images uint8 (n, H, W, C) and labels (n,)."""
        e, own = self.experiment, self.shards[client]
        x, y = e.partition.view(self.dataset.x_train[own], self.dataset.y_train[own], client, e.clients, round)
        for method in overriding(e.methods, "data"):
            x, y = method.data(self, client, round, x, y)
        return x, y

    def split(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Images and labels of the "test" split, or of "validation": the holdout without what methods share of it."""
        if name == "test":
            return self.dataset.x_test, self.dataset.y_test
        return self.dataset.x_train[self.validation], self.dataset.y_train[self.validation]

    def scores(self, w: Tensor, images: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray]:
        """Summed loss, and correct predictions per class (classes,), of weights `w` on some images, in fp32."""
        network, y = self.space.at(w), torch.from_numpy(labels)
        loss, right = 0.0, []
        with torch.inference_mode():
            for x, target in zip(torch.from_numpy(images).split(500), y.split(500), strict=True):
                output = network(self.space.images(x))
                loss += float(local.criterion(output, target, reduction="sum"))
                right.append(output.argmax(1) == target)
        return loss, np.bincount(labels[torch.cat(right).numpy()], minlength=self.classes)

    @functools.cached_property
    def client_tests(self) -> list[np.ndarray]:
        """Test images of each client: drawn from the test set by its own label distribution, and from its own site
        where every client has a single one."""
        held = partitions.counts(self.dataset.y_train, self.shards, self.classes)
        rng = seeds.numpy(self.experiment.seed, "client tests")
        sites = [np.unique(self.dataset.site_train[shard]) for shard in self.shards]
        own = np.concatenate(sites) if all(len(one) == 1 for one in sites) else None
        return partitions.client_test(self.dataset.y_test, held, rng, self.dataset.site_test, own)


@functools.lru_cache(maxsize=2)
def setting(experiment: Experiment) -> Setting:
    """The experiment's setting; this process keeps the last two."""
    return Setting(experiment)


def check(experiment: Experiment) -> None:
    """Raise InputError, before any training, if the experiment cannot be run."""
    batched.device()
    Setting(experiment)


# ---------------------------------------------------------------- tasks, done by workers


@dataclass
class Result:
    """What one client returns from a round."""

    index: int
    n: int
    weight: float
    delta: Tensor | None
    loss: float
    sent: dict[str, tuple[str, Tensor]]
    state: State
    values: dict[int, Values]
    gradients: int
    upload_bytes: float
    download_bytes: float


def new_client(
    s: Setting, index: int, round: int, w: Tensor, state: State, server: State, lr: float,
    samples: tuple[np.ndarray, np.ndarray] | None = None,
) -> Client:  # fmt: skip
    """A client about to train from the global weights `w`, on its own samples unless others are given."""
    e = s.experiment
    x, y = samples or s.samples(index, round)
    s.space.w.copy_(w)
    return Client(
        index=index, round=round, seed=e.seed, space=s.space, w_start=w, x=torch.from_numpy(x), y=torch.from_numpy(y),
        lr=lr, epochs=e.epochs, batch_size=e.batch_size or len(y), state=state, server=server,
        upload_bytes=4.0 * len(w), download_bytes=4.0 * len(w), setting=s,
        fit=functools.partial(local.train, experiment=e),
    )  # fmt: skip


def train_client(
    e: Experiment, index: int, round: int, w: Tensor, state: State, server: State, due: tuple[int, ...],
    out: Tensor | None = None,
) -> Result:  # fmt: skip
    """One client's part of a round. `due` are the positions of the measures that look at it; the update is in `out`."""
    client = started(e, index, round, w, state, server)
    client.loss = local.train(client, e, e.methods)
    return returned(client, w, due, out)


def started(e: Experiment, index: int, round: int, w: Tensor, state: State, server: State) -> Client:
    """A client just before its first step."""
    client = new_client(setting(e), index, round, w, state, server, e.rate(round))
    for method in overriding(e.methods, "samples"):
        method.samples(client)
    for method in overriding(e.methods, "start"):
        method.start(client)
    return client


def returned(client: Client, w: Tensor, due: tuple[int, ...], out: Tensor | None = None) -> Result:
    """What a client returns that has trained from the global weights `w`; `out`, if given, becomes its update."""
    e = client.setting.experiment
    client.delta, client.weight = torch.sub(w, client.w, out=out), client.n
    for method in overriding(e.methods, "finish"):
        method.finish(client)
    return Result(
        client.index, client.n, client.weight, client.delta, client.loss, client.sent, client.state,
        {i: e.measures[i].client(client) for i in due}, client.gradients,
        client.upload_bytes + client.sent_bytes, client.download_bytes + client.images_bytes,
    )  # fmt: skip


def train_client_shared(vectors: Tensor, row: int, e: Experiment, index: int, round: int, *rest: Any) -> Result:
    """:func:`train_client` in another process: the last of `vectors` are the weights, one becomes the update."""
    result = train_client(e, index, round, vectors[-1], *rest, out=(own := vectors[row]))
    if result.delta is not own:  # a method put another in its place
        own.copy_(result.delta)
    return replace(result, delta=None)


def train_on_server(
    s: Setting, server: Server, x: np.ndarray, y: np.ndarray, epochs: int, purpose: str
) -> Tensor:
    """Weights after plain SGD from the global weights, as a client would do it, on images that the server holds."""
    worker = new_client(s, s.experiment.clients, server.round, server.w, {}, {}, server.lr, (x, y))
    worker.epochs = epochs
    local.train(worker, s.experiment, (), purpose)
    server.gradients += worker.gradients
    return worker.w.clone()


def score_chunk(e: Experiment, w: Tensor, split: str, start: int) -> tuple[float, np.ndarray]:
    """Summed loss and correct predictions per class on one chunk of a split."""
    s = setting(e)
    images, labels = s.split(split)
    return s.scores(w, images[start : start + CHUNK], labels[start : start + CHUNK])


class Score(NamedTuple):
    """A client's personal model on test images."""

    loss: float
    """Summed."""
    correct: np.ndarray
    """Correct predictions by class, (classes,)."""
    images: int
    gradients: int
    """Sample gradients that making the model personal took."""


def score_client(
    e: Experiment, w: Tensor, index: int, round: int, state: State, server: State, images: str
) -> Score:
    """A client's personal model on its "own" test images or on "all"."""
    s = setting(e)
    client = new_client(s, index, round, w, dict(state), server, e.rate(round))
    if personal := overriding(e.methods, "personal"):
        for method in overriding(e.methods, "samples"):
            method.samples(client)
        for method in personal:
            method.personal(client)
    x, y = s.split("test")
    if images == "own":
        own = s.client_tests[index]
        x, y = e.partition.view_test(x[own], y[own], index, e.clients, round)
    return Score(*s.scores(client.w.clone(), x, y), len(y), client.gradients)


def client_loss(e: Experiment, w: Tensor, index: int, round: int) -> float:
    """Mean loss of weights `w` on what a client trains on."""
    s = setting(e)
    x, y = s.samples(index, round)
    return s.scores(w, x, y)[0] / len(y)


# ---------------------------------------------------------------- the round loop


def plain(value: Any) -> Any:
    """A measured value in Python's own types: a stored state with numpy's would not be read again."""
    if isinstance(value, np.generic | np.ndarray | Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def finite(value: Any) -> bool:
    """Whether a :func:`plain` value has no NaN and no infinity in it."""
    if isinstance(value, dict | list):
        return all(map(finite, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, float) or math.isfinite(value)


@dataclass
class Run:
    """A run under way, complete after each round: what to store, and what to go on from."""

    experiment: Experiment
    round: int
    w: Tensor
    server: State
    clients: dict[int, State]
    series: dict[str, dict[str, list]] = field(default_factory=dict)
    workers: int = 1
    trajectory: Callable[[Experiment], Callable[[int], Tensor]] | None = None
    """The weights of another run by round, for measures that compare with it."""
    vectors: workers.Rows | None = None
    """With several workers: memory shared with them, one update a row and the weights in the last."""
    device: torch.device | None = None
    """Where clients train together (`fedlib.batched`); None: one by one, on the workers."""

    def add(self, name: str, value: Any) -> None:
        """Append a value of this round to a series; :class:`~fedlib.local.Diverged` for one that is not finite."""
        value = plain(value)
        if not finite(value):
            raise local.Diverged(f"round {self.round}: {name} is not finite; lower lr (now {self.experiment.lr:g})")
        one = self.series.setdefault(name, {"round": [], "value": []})
        one["round"].append(self.round)
        one["value"].append(value)

    def map(self, function: Callable[..., Any], tasks: Any) -> Iterator[Any]:
        """Do tasks on this run's workers, results in order."""
        return workers.ordered(function, tasks, self.workers)

    def score_clients(
        self, w: Tensor, indices: Iterable[int], images: Literal["own", "all"] = "own"
    ) -> Iterator[tuple[int, Score]]:
        """For each client, what :func:`score_client` says of global weights `w` after the methods' personal step."""
        indices = list(indices)
        tasks = ((self.experiment, w, k, self.round, client_state(self, k), self.broadcast, images) for k in indices)
        return zip(indices, self.map(score_client, tasks), strict=True)

    @property
    def setting(self) -> Setting:
        return setting(self.experiment)

    @property
    def broadcast(self) -> State:
        """What the server sends to the clients beside the weights."""
        return {name: self.server[name] for method in self.experiment.methods for name in method.broadcast()}

    @property
    def state(self) -> dict[str, Any]:
        """Everything that going on needs, as tensors and plain types."""
        return {name: getattr(self, name) for name in ("round", "w", "server", "clients", "series")}


def evaluate(run: Run, w: Tensor, split: str) -> tuple[float, float, np.ndarray]:
    """Mean loss, accuracy and accuracy per class (classes,) of weights `w` on a split."""
    e = run.experiment
    s = setting(e)
    labels = s.split(split)[1]
    tasks = ((e, w, split, start) for start in range(0, len(labels), CHUNK))
    loss, correct = 0.0, np.zeros(s.classes, int)
    for chunk_loss, chunk_correct in run.map(score_chunk, tasks):
        loss += chunk_loss
        correct += chunk_correct
    totals = np.bincount(labels, minlength=s.classes)
    return loss / len(labels), correct.sum() / len(labels), correct / np.maximum(totals, 1)


def begin(experiment: Experiment, state: dict[str, Any] | None = None, workers: int = 1, trajectory: Any = None) -> Run:
    """A run before its first round, or where `state` (a :attr:`Run.state`) left it."""
    device, s = batched.device(), setting(experiment)
    if device is not None and (reason := batched.why_not(experiment)):
        warnings.warn(f"{batched.VARIABLE}: clients train one by one on the CPU, since {reason}", stacklevel=2)
        device = None
    if state is None:
        server: State = {}
        for method in experiment.methods:
            server |= method.server_state(s.w_init, s.space.trained, experiment.clients)
        state = {"round": 0, "w": s.w_init.clone(), "server": server, "clients": {}, "series": {}}
    return Run(experiment, workers=workers, trajectory=trajectory, device=device, **state)


def play(run: Run, until: int | None = None) -> Iterator[Run]:
    """Train round after round, yielding the run after each, up to round `until` (default: the experiment's last)."""
    until = run.experiment.rounds if until is None else min(until, run.experiment.rounds)
    with workers.single_thread():
        while run.round < until:
            play_round(run)
            yield run


def play_round(run: Run) -> None:
    """One communication round, in place."""
    e, s = run.experiment, setting(run.experiment)
    run.round = r = run.round + 1
    server = Server(
        w=run.w, trained=s.space.trained, clients=e.clients, sizes=s.sizes, per_round=e.cohort, state=run.server,
        seed=e.seed, round=r, lr=e.rate(r), space=s.space, setting=s,
        losses=lambda ids: dict(zip(ids, run.map(client_loss, ((e, run.w, k, r) for k in ids)), strict=True)),
    )  # fmt: skip
    server.fit = functools.partial(train_on_server, s, server)
    for method in overriding(e.methods, "before"):
        method.before(server)
    run.w = server.w
    server.selected = uniform(e, r)
    for method in overriding(e.methods, "select"):
        server.selected = method.select(server, server.selected)

    due = tuple(i for i, m in enumerate(e.measures) if m.due(r, e.rounds))
    scratch = {i: e.measures[i].begin(run) for i in due}
    values: dict[int, dict[int, Values]] = {i: {} for i in due}
    broadcast = run.broadcast
    tasks = ((e, k, r, client_state(run, k), broadcast, due) for k in server.selected)

    beside = size(broadcast)
    total, weights, samples, loss, gradients, up, down = torch.zeros_like(run.w), 0.0, 0, 0.0, 0, 0.0, 0.0
    for result in train_clients(run, tasks):
        total.add_(result.delta, alpha=result.weight)
        weights += result.weight
        samples += result.n
        loss += result.n * result.loss
        gradients += result.gradients
        receive(server.received, result)
        down += result.download_bytes + beside
        up += result.upload_bytes
        if result.state:
            # Copied out of shared memory, of which a process can hold only so many pieces.
            run.clients[result.index] = {name: tensor.clone() for name, tensor in result.state.items()}
        for i in due:
            e.measures[i].observe(scratch[i], result.index, result.weight, result.delta, result.values[i])
            values[i][result.index] = result.values[i]
    server.received = {
        name: value / weights if how == "mean" else value for name, (how, value) in server.received.items()
    }

    delta = total.div_(weights)
    for method in overriding(e.methods, "aggregate"):
        delta = method.aggregate(server, delta)
    server.w = run.w - delta
    for method in overriding(e.methods, "after"):
        method.after(server)
    run.w = server.w

    run.add("train_loss", loss / samples)
    run.add("weight_norm", float(run.w.norm()))
    run.add("bytes_up", up + server.bytes_up)
    run.add("bytes_down", down + server.bytes_down)
    run.add("gradients", gradients + server.gradients)
    run.add("client_state_bytes", sum(size(state) for state in run.clients.values()))
    if r % e.evaluate_every == 0 or r == e.rounds:
        for split in ("test", "validation") if len(s.validation) else ("test",):
            test_loss, accuracy, per_class = evaluate(run, run.w, split)
            run.add(f"{split}_loss", test_loss)
            run.add(f"{split}_accuracy", accuracy)
            run.add(f"{split}_accuracy_per_class", per_class.tolist())
    for i in due:
        for name, value in e.measures[i].finish(scratch[i], run, server, values[i]).items():
            run.add(name, value)


def train_clients(run: Run, tasks: Iterable[tuple]) -> Iterator[Result]:
    """What :func:`train_client` returns for each task without its weights, which are the run's, in order.

    To send a vector takes new memory page by page, most of what a round costs beside training; so weights and updates
    go through vectors that all processes map once. A result's update lasts until the next result is asked for.
    """
    if run.device is not None:
        yield from train_together(run, tasks)
        return
    if run.workers == 1:
        yield from run.map(train_client, ((e, k, r, run.w, *rest) for e, k, r, *rest in tasks))
        return
    rows = workers.under_way(run.workers)
    if run.vectors is None:
        run.vectors = workers.Rows(rows + 1, len(run.w))
    vectors = run.vectors.tensor
    vectors[-1].copy_(run.w)
    tasks = ((run.vectors, i % rows, *task) for i, task in enumerate(tasks))
    for i, result in enumerate(run.map(train_client_shared, tasks)):
        yield replace(result, delta=vectors[i % rows])


def train_together(run: Run, tasks: Iterable[tuple]) -> Iterator[Result]:
    """The same on the run's device, at most `batched.CLIENTS` at a time."""
    tasks = iter(tasks)
    while some := list(itertools.islice(tasks, batched.CLIENTS)):
        clients = (started(e, k, r, run.w, state, server) for e, k, r, state, server, _ in some)
        for client, (*_, due) in zip(batched.train(clients, run.experiment, run.device), some, strict=True):
            yield returned(client, run.w, due)


def uniform(e: Experiment, round: int) -> list[int]:
    """FedAvg's clients of a round: all of them, or so many drawn uniformly without replacement."""
    if e.cohort == e.clients:
        return list(range(e.clients))
    return seeds.numpy(e.seed, "select", round).choice(e.clients, e.cohort, replace=False).tolist()


def client_state(run: Run, index: int) -> State:
    """What a client kept from its last round, or what it starts with."""
    if index in run.clients:
        return run.clients[index]
    state: State = {}
    for method in run.experiment.methods:
        state |= method.client_state(run.w, setting(run.experiment).space.trained)
    return state


def size(state: State) -> int:
    """Bytes of named tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in state.values())


def receive(received: dict[str, tuple[str, Tensor]], result: Result) -> None:
    """Add what a client sent beside its update: weighted as that for a mean, plain for a sum."""
    for name, (how, value) in result.sent.items():
        share = value * result.weight if how == "mean" else value
        received[name] = (how, received[name][1] + share if name in received else share)

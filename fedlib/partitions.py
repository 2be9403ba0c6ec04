"""Who holds what: how a data set is divided over clients, and what each client sees of its part.

The kinds of non-IID data are those of Hsieh et al. 2020 and Kairouz et al. 2021 (section 3.1): label skew
(:class:`Shards`, :class:`Dirichlet`, :class:`FixedEMD`), quantity skew (:class:`QuantitySkew`), feature skew
(:class:`FeatureSkew`, :class:`BySite`), concept drift (:class:`ConceptDrift`) and temporal correlation
(:class:`TemporalOrder`).

A client's local test set is drawn with :func:`client_test` and passed through :meth:`Partition.view_test`; the test set
of the federation is the whole test set, unchanged, unless a class says otherwise.
"""

from __future__ import annotations

import zlib
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, SerializeAsAny, field_validator

from fedlib import seeds
from fedlib.spec import InputError, Spec

TRIES = 10_000
"""Draws of an unbalanced Dirichlet partition before it is given up."""


class Partition(Spec):
    """Family of partitions. A subclass gives :meth:`_split`, and :meth:`view` where clients see samples changed."""

    family = {}
    complete: ClassVar[bool] = True
    """Whether the clients hold all samples together."""
    disjoint: ClassVar[bool] = True
    """Whether no two clients share a sample, so that there are at most as many clients as samples."""

    def split(
        self, labels: np.ndarray, clients: int, rng: np.random.Generator, sites: np.ndarray | None = None
    ) -> list[np.ndarray]:
        """Sorted indices (int64) of each client's samples: disjoint, none empty, together all samples unless the class
        says otherwise.

        `labels` (N,) are integers from 0, `sites` (N,) the site each sample comes from. Raises :class:`InputError`
        for more clients than samples, a class without a sample, a class that no client would hold, and whatever the
        partition cannot do with these labels and clients.
        """
        labels = np.asarray(labels, np.int64)
        if labels.ndim != 1 or not len(labels):
            raise InputError(f"labels have shape {labels.shape} (allowed: one dimension, at least one sample)")
        if clients < 1 or (self.disjoint and clients > len(labels)):
            raise InputError(f"clients = {clients} with {len(labels)} samples (allowed: 1 to {len(labels)}, "
                             f"so that each client has a sample)")
        if sites is not None and np.shape(sites) != labels.shape:
            raise InputError(f"sites of shape {np.shape(sites)}, labels {labels.shape} (allowed: one site per sample)")
        if (missing := np.flatnonzero(np.bincount(labels) == 0)).size:
            raise InputError(f"no sample has class {missing[0]}, so no client can hold it "
                             f"(allowed: labels 0 to {labels.max()}, each with a sample)")
        shards = [np.sort(shard).astype(np.int64) for shard in self._split(labels, clients, rng, sites)]
        held = np.bincount(labels[np.concatenate(shards)], minlength=labels.max() + 1)
        if (missing := np.flatnonzero(held == 0)).size:
            raise InputError(f"class {missing[0]} is missing on every client: {self.describe()} with {len(labels)} "
                             f"samples, {clients} clients")
        return shards

    def _split(
        self, labels: np.ndarray, clients: int, rng: np.random.Generator, sites: np.ndarray | None
    ) -> list[np.ndarray]:
        raise NotImplementedError

    def view(
        self, images: np.ndarray, labels: np.ndarray, client: int, clients: int, round: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """What the client sees in `round` (from 1) of its own samples: images uint8 (n, H, W, C), labels (n,)."""
        return images, labels

    def view_test(
        self, images: np.ndarray, labels: np.ndarray, client: int, clients: int, round: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """The same for the client's local test set."""
        return self.view(images, labels, client, clients, round)

    def describe(self) -> str:
        """For messages: ``Dirichlet(alpha=0.1, balanced=False, min_size=10)``."""
        return f"{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in self)})"


class Iid(Partition):
    """A uniformly random division into parts of equal size (within one sample): no skew."""

    def _split(self, labels, clients, rng, sites):
        return _equal_parts(len(labels), clients, rng)


class Pooled(Partition):
    """One client that holds what the clients of another partition hold together, for training on the same images."""

    complete = False

    of: SerializeAsAny[Partition]
    """The other partition."""
    clients: int = Field(ge=1)
    """Its clients."""

    def _split(self, labels, clients, rng, sites):
        if clients != 1:
            raise InputError(f"clients = {clients} with Pooled (allowed: 1)")
        return [np.concatenate(self.of.split(labels, self.clients, rng, sites))]


class Resampled(Partition):
    """Clients of equal size without skew, as many as one likes: each draws its samples from all, with replacement.

    For federations larger than the data set. Clients share samples, and one client may hold a sample twice.
    """

    complete = disjoint = False

    size: int = Field(ge=1)
    """Samples of each client."""

    def _split(self, labels, clients, rng, sites):
        return list(rng.integers(len(labels), size=(clients, self.size)))


# --------------------------------------------------------------------------------------------------------- label skew


class Shards(Partition):
    """Each client has samples of exactly k classes (McMahan et al. 2017; Zhao et al. 2018, section 2.1).

    The samples, sorted by label, are cut into k shards per client and each client gets k shards of k different classes,
    at random. Shards end where a class ends: a class gets a number of shards in proportion to its size (at least one,
    at most one per client) and is cut into equal parts. With classes of equal size whose number divides k times the
    clients this is Zhao et al.'s construction, all clients of equal size: k = 1 with 10 clients and 10 classes is their
    non-IID(1), k = 2 their non-IID(2).
    """

    classes_per_client: int = Field(ge=1)
    """k: 1 to the number of classes; k times the clients must reach the number of classes."""

    def _split(self, labels, clients, rng, sites):
        k, sizes = self.classes_per_client, np.bincount(labels)
        if k > len(sizes):
            raise InputError(f"classes_per_client = {k} with {len(sizes)} classes (allowed: 1 to {len(sizes)})")
        if k * clients < len(sizes):
            raise InputError(f"classes_per_client = {k} with {clients} clients leaves a class of {len(sizes)} missing "
                             f"on every client (allowed: classes_per_client x clients >= {len(sizes)})")
        number = _shards_per_class(sizes, k * clients, np.minimum(sizes, clients))
        free, given = np.full(clients, k), [[] for _ in range(clients)]
        for label in rng.permutation(len(sizes)):
            # The clients with most shards to come first, ties at random: that always ends with k classes for each.
            takers = np.lexsort((rng.random(clients), -free))[: number[label]]
            free[takers] -= 1
            parts = np.array_split(rng.permutation(np.flatnonzero(labels == label)), number[label])
            for client, part in zip(takers, parts, strict=True):
                given[client].append(part)
        return [np.concatenate(parts) for parts in given]


def _shards_per_class(sizes: np.ndarray, total: int, most: np.ndarray) -> np.ndarray:
    """`total` shards in proportion to the sizes of the classes, each between 1 and `most`."""
    if most.sum() < total:
        raise InputError(f"{total} shards of different classes cannot be cut from classes of {sizes.tolist()} samples "
                         f"(allowed: at most {most.sum()} = classes_per_client x clients)")
    wanted = sizes / sizes.sum() * total
    number = np.clip(np.floor(wanted).astype(np.int64), 1, most)
    while (short := total - number.sum()) > 0:
        number[np.argmax(np.where(number < most, wanted - number, -np.inf))] += 1
    for _ in range(-short):
        number[np.argmin(np.where(number > 1, wanted - number, np.inf))] -= 1
    return number


class Dirichlet(Partition):
    """Label skew of concentration alpha: small alpha, few classes per client; large alpha, nearly IID.

    Unbalanced (default), sizes and label distributions both vary: the samples of each class in turn are divided over
    the clients by proportions from Dirichlet(alpha), where a client that already holds N / clients samples or more gets
    nothing (the others' proportions are scaled up to 1); the whole draw is repeated until every client has `min_size`
    samples, at most :data:`TRIES` times. This is the partition of FedDecorr (Shi et al. 2023, official code), and that
    of flwr-datasets' ``DirichletPartitioner`` with ``self_balancing``.

    Balanced, every client has equal size (within one sample): each draws its own label distribution from
    Dirichlet(alpha) over the classes (Hsu et al. 2019) and fills its places from it. All places of all clients, in
    random order, draw a class; where a class is asked for more often than it has samples left, those first in order get
    them, and the others draw again from their client's distribution restricted to the classes with samples left (a
    client whose distribution has no mass there takes these classes in proportion to what is left). Every sample is
    used, so for small alpha the places filled last stray from the client's own distribution and the skew is less than
    :func:`~fedlib.measures.emd.expected_emd` says.
    """

    alpha: float = Field(gt=0)
    """Concentration, > 0; the papers use 0.01 to 100."""
    balanced: bool = False
    """Clients of equal size."""
    min_size: int = Field(10, ge=1)
    """Least number of samples of a client."""

    def _split(self, labels, clients, rng, sites):
        if self.min_size * clients > len(labels):
            raise InputError(f"min_size = {self.min_size} for {clients} clients needs {self.min_size * clients} "
                             f"samples, there are {len(labels)} (allowed: min_size 1 to {len(labels) // clients})")
        draw = self._balanced if self.balanced else self._unbalanced
        return _take(labels, draw(np.bincount(labels), clients, rng), rng)

    def _unbalanced(self, sizes: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray:
        best = 0
        for _ in range(TRIES):
            table = np.zeros((clients, len(sizes)), np.int64)
            held = np.zeros(clients, np.int64)
            for label, p in enumerate(rng.dirichlet(np.full(clients, self.alpha), len(sizes))):
                p = p * (held < sizes.sum() / clients)
                if not p.sum() > 0:
                    break  # all the mass is on clients that are full: this draw has no outcome
                cuts = (np.cumsum(p / p.sum()) * sizes[label])[:-1].astype(np.int64)  # cut off, as the official code
                table[:, label] = np.diff(cuts, prepend=0, append=sizes[label])
                held += table[:, label]
            else:
                if held.min() >= self.min_size:
                    return table
                best = max(best, held.min())
        raise InputError(f"Dirichlet: none of {TRIES} draws with alpha = {self.alpha:g}, n = {sizes.sum()} samples and "
                         f"{clients} clients gave each client the minimum of {self.min_size} samples (the best "
                         f"draw gave {best}; allowed: a smaller min_size, fewer clients, a larger alpha, or "
                         f"balanced = True)")

    def _balanced(self, sizes: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray:
        own = rng.dirichlet(np.full(len(sizes), self.alpha), clients)
        places = rng.permutation(np.arange(sizes.sum()) % clients)  # the client of each place
        left, table = sizes.copy(), np.zeros((clients, len(sizes)), np.int64)
        while len(places):
            weights = own * (left > 0)
            weights[weights.sum(1) < 1e-12] = left
            cumulated = np.cumsum(weights, 1)
            cumulated /= cumulated[:, -1:]
            drawn = (rng.random(len(places))[:, None] >= cumulated[places]).sum(1)
            again = []
            for label in range(len(sizes)):
                takers = np.flatnonzero(drawn == label)
                np.add.at(table[:, label], places[takers[: left[label]]], 1)
                again.append(takers[left[label] :])
                left[label] -= min(left[label], len(takers))
            places = places[np.sort(np.concatenate(again))]
        return table


class FixedEMD(Partition):
    """Label skew of one given strength: every client at the same EMD (Zhao et al. 2018, section 3.2).

    EMD is the L1 distance between a client's label distribution and the uniform one. One label distribution P at
    exactly that distance is drawn; client j has P shifted cyclically by j classes, so that a group of as many clients
    as there are classes holds each class in equal number and each sample once. The clients must be a multiple of the
    classes; further groups repeat the shifts. Different `rng` give different P.

    P is proportional to Z^t with Z from Dirichlet(1, ..., 1): t = 0 is uniform, t to infinity a single class, and the
    distance grows with t in between, so that one t has the distance wanted (the paper does not say how it drew P). The
    counts are whole numbers: the EMD reached is the one asked for within 2 / n, n the samples of a client, where the
    number of classes divides n (else within 2 x classes / n).

    All clients have n = floor(m / groups) samples, m the size of the smallest class. With classes of equal size that
    the number of groups divides, all samples are used; else the rest is left out.
    """

    complete = False

    emd: float = Field(ge=0, lt=2)
    """0 to 2 (1 - 1 / classes): 1.8 for 10 classes, one class per client."""

    def _split(self, labels, clients, rng, sites):
        sizes = np.bincount(labels)
        classes = len(sizes)
        most = 2 * (1 - 1 / classes)
        if self.emd > most + 1e-12:
            raise InputError(f"emd = {self.emd:g} with {classes} classes (allowed: 0 to {most:g})")
        if clients % classes:
            raise InputError(f"clients = {clients} with {classes} classes: a fixed EMD by cyclic shifts needs a "
                             f"multiple of the classes (allowed: {classes}, {2 * classes}, {3 * classes}, ...)")
        n = sizes.min() // (clients // classes)
        if n == 0:
            raise InputError(f"clients = {clients}, but the smallest class has {sizes.min()} samples (allowed: at most "
                             f"{sizes.min() * classes} clients, so that each has a sample)")
        counts = _rounded(self._distribution(classes, rng), n)
        table = np.stack([np.roll(counts, client) for client in range(clients)])
        return _take(labels, table, rng)

    def _distribution(self, classes: int, rng: np.random.Generator) -> np.ndarray:
        from scipy.optimize import brentq  # here, since every run would wait for it otherwise
        from scipy.special import softmax

        logs = np.log(rng.dirichlet(np.ones(classes)))

        def above(t: float) -> float:
            return np.abs(softmax(t * logs) - 1 / classes).sum() - self.emd

        if self.emd >= 2 * (1 - 1 / classes) - 1e-9:
            return (logs == logs.max()).astype(float)
        top = 1.0
        while above(top) < 0:
            top *= 2
        return softmax(brentq(above, 0, top, xtol=1e-14) * logs)


def _rounded(p: np.ndarray, n: int) -> np.ndarray:
    """n p in whole numbers: above and below the uniform distribution apart, so that the L1 distance to it is kept."""
    above = p > 1 / len(p)
    counts = np.floor(n * p + 1e-9).astype(np.int64)
    total = round(n * p[above].sum())
    for group, missing in ((above, total - counts[above].sum()), (~above, n - total - counts[~above].sum())):
        order = np.argsort(-(n * p - counts)[group], kind="stable")[:missing]
        counts[np.flatnonzero(group)[order]] += 1
    return counts


# ------------------------------------------------------------------------------------------------------ quantity skew


class QuantitySkew(Partition):
    """Clients of very different size, labels IID: sizes follow a power law, as in Li et al. 2020 (FedProx, section 5).

    The client of rank r (from 1) has a size proportional to r^-s, with s such that the largest client is `ratio` times
    the smallest. Client 0 is the largest. Sizes are rounded to whole samples.
    """

    ratio: float = Field(ge=1)
    """Size of the largest client over that of the smallest: 1 (equal) to 100 and more."""

    def _split(self, labels, clients, rng, sites):
        if clients == 1:
            return [np.arange(len(labels))]
        sizes = np.arange(1, clients + 1) ** (-np.log(self.ratio) / np.log(clients))
        sizes *= len(labels) / sizes.sum()
        counts = np.floor(sizes).astype(np.int64)
        counts[np.argsort(counts - sizes, kind="stable")[: len(labels) - counts.sum()]] += 1
        if counts.min() == 0:
            raise InputError(f"ratio = {self.ratio:g} with {clients} clients and {len(labels)} samples leaves the "
                             f"smallest client without a sample (allowed: a smaller ratio or fewer clients)")
        return np.split(rng.permutation(len(labels)), np.cumsum(counts)[:-1])


# ------------------------------------------------------------------------------------------------------- feature skew


class FeatureSkew(Partition):
    """The same labels everywhere, other pixels: client k sees its images through its own fixed transformation.

    Samples are divided as by :class:`Iid`. With u = k / clients for client k (from 0, who sees the original unless the
    kind is noise):

    - ``rotation``: by strength x 360 u degrees about the centre, bilinear, black outside (rotated MNIST, Ghosh et al.
      2020). 1: all around the circle.
    - ``colour``: three channels, hue turned by strength x 360 u degrees. One channel, contrast c about mid-grey,
      x' = 127.5 + c (x - 127.5), with c from 1 at client 0 down to 1 - 2 strength at the last, kept away from grey by
      |c| >= 0.25. 1: the last client sees the negative.
    - ``noise``: Gaussian noise of standard deviation strength x (k + 1) / clients on the scale [0, 1] (after
      NIID-Bench, Li et al. 2022), cut off at black and white. An image has the same noise each time that a
      client sees it.

    A client's local test set is seen through the same transformation; the federation's test set is unchanged images or
    the union of the clients' test sets.
    """

    kind: Literal["rotation", "colour", "noise"]
    strength: float = Field(1.0, ge=0, le=1)
    """0 (no skew) to 1."""

    def _split(self, labels, clients, rng, sites):
        return _equal_parts(len(labels), clients, rng)

    def view(self, images, labels, client, clients, round):
        if self.kind == "noise":
            return _noisy(images, self.strength * (client + 1) / clients, client), labels
        if self.kind == "colour" and images.shape[-1] == 1:
            contrast = 1 - 2 * self.strength * client / max(clients - 1, 1)
            contrast = max(abs(contrast), 0.25) * (1 if contrast >= 0 else -1)
            return np.rint(127.5 + contrast * (images - 127.5)).astype(np.uint8), labels
        turn = self.strength * client / clients
        return (_turned(images, turn, self.kind) if turn else images), labels


def _noisy(images: np.ndarray, deviation: float, client: int) -> np.ndarray:
    if not deviation:
        return images
    noisy = np.empty_like(images)
    for i, image in enumerate(images):
        noise = seeds.numpy(zlib.crc32(image.tobytes()), "feature noise", 0, client).standard_normal(image.shape)
        noisy[i] = np.rint(np.clip(image + 255 * deviation * noise, 0, 255))
    return noisy


def _turned(images: np.ndarray, turn: float, kind: str) -> np.ndarray:
    """All images rotated, or their hue, by `turn` of a full circle (0 to 1)."""
    import torch
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms.v2 import functional

    x = torch.from_numpy(np.ascontiguousarray(images)).permute(0, 3, 1, 2)
    if kind == "rotation":
        x = functional.rotate(x, 360 * turn, interpolation=InterpolationMode.BILINEAR)
    else:
        x = functional.adjust_hue(x, turn if turn <= 0.5 else turn - 1)
    return np.ascontiguousarray(x.permute(0, 2, 3, 1).numpy())


class BySite(Partition):
    """Feature skew as it comes: every client belongs to one site (domain), for example to MNIST or to USPS.

    Client k belongs to site k mod S of S sites, and the samples of a site are divided as by :class:`Iid` over its
    clients. Sites differ in size, so clients do as well, unless `equal_sizes`. A client's local test set has images of
    its own site: give :func:`client_test` the sites.
    """

    complete = False

    equal_sizes: bool = False
    """All clients have as many samples as the smallest has: what larger sites have beyond that is left out at random
    (as Li et al. 2021, FedBN, do with digits), and feature skew comes without quantity skew."""

    def _split(self, labels, clients, rng, sites):
        number = 0 if sites is None else len(np.unique(sites))
        if number < 2:
            raise InputError("BySite needs a data set with several sites (allowed: digit_sites)")
        if clients < number:
            raise InputError(f"clients = {clients} with {number} sites (allowed: at least one client per site)")
        shards = [np.empty(0, np.int64)] * clients
        for k, site in enumerate(np.unique(sites)):
            own = np.flatnonzero(sites == site)
            members = range(k, clients, number)
            if len(members) > len(own):
                raise InputError(f"site {site} has {len(own)} samples for its {len(members)} clients (allowed: at most "
                                 f"{len(own)} clients per site)")
            for client, part in zip(members, _equal_parts(len(own), len(members), rng), strict=True):
                shards[client] = own[part]
        if self.equal_sizes:
            least = min(map(len, shards))
            shards = [rng.permutation(shard)[:least] for shard in shards]
        return shards


# ---------------------------------------------------------------------------------------------------- drift over time


class ConceptDrift(Partition):
    """The labels change their meaning for some clients: p(y | x) differs between clients and over time.

    Samples are divided as by :class:`Iid`. From round `from_round` on, the first round(fraction x clients) clients see
    each pair of classes in `swap` with exchanged labels (label swap, as in Sattler et al. 2021 and FedDrift,
    Jothimurugesan et al. 2023); the others go on as before. With from_round = 1 the concepts differ from the start.

    A drifted client's local test set has the exchanged labels as well; for the federation, the unchanged test set
    measures the old concept.
    """

    fraction: float = Field(ge=0, le=1)
    """Part of the clients that drift."""
    from_round: int = Field(1, ge=1)
    """First round (from 1) with the new meaning."""
    swap: tuple[tuple[int, int], ...] = ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9))
    """Pairs of classes whose labels are exchanged; each class in one pair at most."""

    @field_validator("swap")
    @classmethod
    def _disjoint(cls, swap):
        flat = [label for pair in swap for label in pair]
        if not flat or min(flat) < 0 or len(set(flat)) < len(flat):
            raise InputError(f"ConceptDrift.swap = {swap} (allowed: one or more pairs of classes, no class twice)")
        return swap

    def _split(self, labels, clients, rng, sites):
        if max(map(max, self.swap)) > labels.max():
            raise InputError(f"ConceptDrift.swap = {self.swap} with {labels.max() + 1} classes (allowed: classes 0 to "
                             f"{labels.max()})")
        return _equal_parts(len(labels), clients, rng)

    def view(self, images, labels, client, clients, round):
        if round < self.from_round or client >= np.floor(self.fraction * clients + 0.5):
            return images, labels
        meaning = np.arange(max(max(map(max, self.swap)), labels.max(initial=0)) + 1)
        for a, b in self.swap:
            meaning[a], meaning[b] = b, a
        return images, meaning[labels]


class TemporalOrder(Partition):
    """Samples arrive in the order of their labels: all clients see the same classes at the same time, then others.

    This is the block-cyclic data of Eichner et al. 2019 (semi-cyclic SGD). Samples are divided as by :class:`Iid`; a
    client sees, of its own samples sorted by label, a window that moves by 1 / `period` of them each round and starts
    again after `period` rounds. The window closes like a circle: after the last class come samples of the first.

    Local and global test sets are unchanged: what is asked for is a model for all times.
    """

    window: float = Field(gt=0, le=1)
    """Part of its samples that a client sees in one round; 1 is no skew."""
    period: int = Field(ge=1)
    """Rounds for once through all samples."""

    def _split(self, labels, clients, rng, sites):
        return _equal_parts(len(labels), clients, rng)

    def view(self, images, labels, client, clients, round):
        n = len(labels)
        start = (round - 1) % self.period * n // self.period
        seen = np.argsort(labels, kind="stable")[(start + np.arange(int(np.ceil(self.window * n)))) % n]
        return images[seen], labels[seen]

    def view_test(self, images, labels, client, clients, round):
        return images, labels


# ---------------------------------------------------------------------------------------------------------- functions


def counts(labels: np.ndarray, shards: list[np.ndarray], classes: int) -> np.ndarray:
    """How many samples of each class each client holds: integers (clients, classes)."""
    return np.stack([np.bincount(labels[shard], minlength=classes) for shard in shards])


def client_test(
    labels_test: np.ndarray,
    train_counts: np.ndarray,
    rng: np.random.Generator,
    sites_test: np.ndarray | None = None,
    client_sites: np.ndarray | None = None,
) -> list[np.ndarray]:
    """Local test sets: sorted indices into the test set that follow each client's own label distribution.

    `train_counts` (clients, classes) is what :func:`counts` gives. A client's test set is the largest that has its
    training distribution within one sample per class, drawn without replacement; different clients may share images.
    With `sites_test` (N,) and `client_sites` (clients,) it has images of the client's own site only. Raises
    :class:`InputError` for a client whose classes are not in the test set.
    """
    train_counts = np.asarray(train_counts)
    shares = train_counts / train_counts.sum(1, keepdims=True)
    tests = []
    for client, share in enumerate(shares):
        usable = np.ones(len(labels_test), bool) if client_sites is None else sites_test == client_sites[client]
        there = np.bincount(labels_test[usable], minlength=len(share))
        held = share > 0
        if (there[held] == 0).any():
            raise InputError(f"client {client} holds class {np.flatnonzero(held & (there == 0))[0]}, of which the test "
                             f"set has no image (allowed: classes {np.flatnonzero(there).tolist()})")
        size = (there[held] / share[held]).min()
        wanted = np.minimum(np.floor(size * share + 0.5).astype(np.int64), there)
        own = [rng.choice(np.flatnonzero(usable & (labels_test == label)), number, replace=False)
               for label, number in enumerate(wanted) if number]
        tests.append(np.sort(np.concatenate(own)))
    return tests


def _equal_parts(n: int, parts: int, rng: np.random.Generator) -> list[np.ndarray]:
    return np.array_split(rng.permutation(n), parts)


def _take(labels: np.ndarray, table: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Random samples, each given once, so that client k has table[k, c] of class c."""
    parts = [[] for _ in table]
    for label in range(table.shape[1]):
        own = rng.permutation(np.flatnonzero(labels == label))
        ends = np.cumsum(table[:, label])
        for client, (start, end) in enumerate(zip(ends - table[:, label], ends, strict=True)):
            parts[client].append(own[start:end])
    return [np.concatenate(own) for own in parts]

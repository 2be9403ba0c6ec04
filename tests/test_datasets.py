"""Data sets: one canonical order, fingerprints, sources, cache and damage."""

import bz2
import os
import subprocess
import sys
import time
import types
import warnings
from pathlib import Path

import numpy as np
import pytest

from fedlib import datasets
from fedlib.spec import InputError

DATA = os.environ.get("FEDLIB_DATA")


def needs_data(name):
    there = bool(DATA) and Path(DATA, f"{name}.npz").exists()
    return pytest.mark.skipif(not there, reason=f"FEDLIB_DATA/{name}.npz is not there")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLIB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDLIB_DATA", raising=False)
    return tmp_path / "cache" / "datasets"


def content(seed=0, shape=(8, 8, 1), train=60, test=20):
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 256, (train + test, *shape), dtype=np.uint8)
    y = np.arange(train + test) % 10
    return {"x_train": x[:train], "y_train": y[:train], "x_test": x[train:], "y_test": y[train:]}


def shuffled(arrays, seed=1):
    rng = np.random.default_rng(seed)
    out = {}
    for split in ("train", "test"):
        order = rng.permutation(len(arrays[f"y_{split}"]))
        out |= {f"{k}_{split}": arrays[f"{k}_{split}"][order] for k in "xy"}
    return out


def known(monkeypatch, name, arrays):
    """Declare `arrays` to be the known content of the set `name`."""
    train, test = (datasets._canonical(arrays[f"x_{s}"], arrays[f"y_{s}"]) for s in ("train", "test"))
    value = datasets._fingerprint(dict(zip(datasets._ARRAYS, train + test, strict=True)))
    monkeypatch.setitem(datasets.KNOWN, name, value)
    return value


@pytest.fixture
def mnist(cache, tmp_path, monkeypatch):
    """A small stand-in called mnist, in FEDLIB_DATA."""
    arrays = content()
    known(monkeypatch, "mnist", arrays)
    folder = tmp_path / "data"
    folder.mkdir()
    np.savez(folder / "mnist.npz", **arrays)
    monkeypatch.setenv("FEDLIB_DATA", str(folder))
    return folder / "mnist.npz"


def same(a, b):
    return all(np.array_equal(getattr(a, key), getattr(b, key)) for key in datasets._ARRAYS)


def test_digits_need_no_download(cache):
    first, second = datasets.load("digits"), datasets.load("digits")
    for d in (first, second):
        assert d.x_train.shape == (4000, 28, 28, 1) and d.x_test.shape == (1000, 28, 28, 1)
        assert d.x_train.dtype == np.uint8 and d.y_train.dtype == np.int64 and d.x_train.flags.c_contiguous
        assert (np.bincount(d.y_train) == 400).all() and (np.bincount(d.y_test) == 100).all()
        assert not d.site_train.any() and d.classes == tuple("0123456789")
        assert d.fingerprint == datasets.KNOWN["digits"]
    assert same(first, second)
    pixels = first.x_train / 255
    assert first.mean[0] == pytest.approx(pixels.mean()) and first.std[0] == pytest.approx(pixels.std())
    train, test = ({row.tobytes() for row in x} for x in (first.x_train, first.x_test))
    assert len(train) == 4000 and len(test) == 1000 and not train & test


def test_order_is_by_label_then_bytes(mnist):
    d = datasets.load("mnist")
    keys = [(y, x.tobytes()) for x, y in zip(d.x_train, d.y_train, strict=True)]
    assert keys == sorted(keys)


def test_order_of_the_source_does_not_matter(mnist, monkeypatch, tmp_path):
    a = datasets.load("mnist")
    np.savez(mnist, **shuffled(content()))
    monkeypatch.setenv("FEDLIB_CACHE", str(tmp_path / "other"))
    assert same(a, datasets.load("mnist"))


@pytest.mark.parametrize("change", ["pixel", "label", "swap"])
def test_another_content_is_refused_and_both_fingerprints_named(mnist, change):
    arrays = content()
    if change == "pixel":
        arrays["x_test"][3, 2, 1, 0] ^= 1
    elif change == "label":
        arrays["y_train"][0] = 5
    else:  # one image moves from train to test and one back
        arrays["x_train"][0], arrays["x_test"][0] = arrays["x_test"][0].copy(), arrays["x_train"][0].copy()
    np.savez(mnist, **arrays)
    with pytest.raises(InputError, match=f"fingerprint is [0-9a-f]{{64}}.*{datasets.KNOWN['mnist']}"):
        datasets.load("mnist")


def test_unknown_name():
    with pytest.raises(InputError, match="unknown data set 'cifar1'; did you mean 'cifar10'.*allowed: cifar10"):
        datasets.load("cifar1")


def test_data_folder_that_does_not_exist(cache, monkeypatch):
    monkeypatch.setenv("FEDLIB_DATA", "/does/not/exist")
    with pytest.raises(InputError, match="FEDLIB_DATA = '/does/not/exist' is not a folder"):
        datasets.load("cifar10")


def test_set_that_cannot_be_downloaded(cache):
    with pytest.raises(InputError, match="'tinyimagenet20' cannot be downloaded: set FEDLIB_DATA"):
        datasets.load("tinyimagenet20")


@pytest.mark.parametrize("keep", [0, 10, 0.5, 0.999])
def test_truncated_data_file(mnist, keep):
    raw = mnist.read_bytes()
    mnist.write_bytes(raw[: keep if keep == 10 else int(keep * len(raw))])
    with pytest.raises(InputError, match=r"mnist\.npz cannot be read, it is damaged or truncated"):
        datasets.load("mnist")


def test_flipped_bit_in_the_data_file(mnist):
    raw = bytearray(mnist.read_bytes())
    raw[1000] ^= 4
    mnist.write_bytes(raw)
    with pytest.raises(InputError, match="damaged"):
        datasets.load("mnist")


def test_data_file_without_an_array_or_with_a_wrong_one(mnist):
    arrays = content()
    np.savez(mnist, **{k: v for k, v in arrays.items() if k != "y_test"})
    with pytest.raises(InputError, match="y_test"):
        datasets.load("mnist")
    np.savez(mnist, **arrays | {"x_train": arrays["x_train"] / 255})
    with pytest.raises(InputError, match="allowed: uint8"):
        datasets.load("mnist")


def test_second_load_maps_the_cache_and_writes_stay_private(mnist, cache):
    datasets.load("mnist")
    mnist.unlink()
    d = datasets.load("mnist")
    assert isinstance(d.x_train.base, np.memmap)
    d.x_train[0] = 7
    assert (datasets.load("mnist").x_train[0] != 7).any()
    assert sorted(p.name for p in cache.iterdir()) == ["mnist", "mnist.lock"]


@pytest.mark.parametrize("file", ["x_train.npy", "y_test.npy", "statistics.json"])
@pytest.mark.parametrize("how", ["empty", "truncated", "flipped", "missing"])
def test_damaged_cache_is_made_again_with_a_warning(mnist, cache, file, how):
    whole = datasets.load("mnist")
    x, mean = whole.x_train.copy(), whole.mean
    path = cache / "mnist" / file
    raw = bytearray(path.read_bytes())
    path.unlink()
    if how == "flipped":
        raw[len(raw) - 70 if file.endswith("npy") else 11] ^= 1
    if how != "missing":
        path.write_bytes({"empty": b"", "truncated": raw[:-20], "flipped": raw}[how])
    with pytest.warns(RuntimeWarning, match="cache of the data set 'mnist' is damaged .* made again"):
        d = datasets.load("mnist")
    assert np.array_equal(d.x_train, x) and d.mean == mean
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        datasets.load("mnist")


def test_killed_writer_leaves_nothing_that_is_read(mnist, cache):
    half = cache / ".mnist.tmp"
    half.mkdir(parents=True)
    (half / "x_train.npy").write_bytes(b"half")
    datasets.load("mnist")
    assert not half.exists() and datasets.load("mnist").fingerprint == datasets.KNOWN["mnist"]


def test_without_a_writable_cache_it_works_from_memory(mnist, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDLIB_CACHE", str(tmp_path / "file" / "cache"))  # refused for every user, root too
    with pytest.warns(RuntimeWarning, match="no cache for the data set 'mnist'.*set FEDLIB_CACHE"):
        d = datasets.load("mnist")
    assert d.fingerprint == datasets.KNOWN["mnist"] and not isinstance(d.x_train.base, np.memmap)


def test_full_disk_while_caching(mnist, cache, monkeypatch):
    def full(path, array):
        Path(path).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.warns(RuntimeWarning, match="could not be cached: .*No space left"):
        d = datasets.load("mnist")
    assert d.fingerprint == datasets.KNOWN["mnist"]
    assert [p.name for p in cache.iterdir()] == ["mnist.lock"]


def test_several_processes_make_one_cache(mnist, cache):
    code = ("import sys; from fedlib import datasets; datasets.KNOWN['mnist'] = sys.argv[1]; "
            "print(datasets.load('mnist').fingerprint)")
    runs = [subprocess.Popen([sys.executable, "-W", "error::RuntimeWarning", "-c", code, datasets.KNOWN["mnist"]],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    outputs = [run.communicate(timeout=120) for run in runs]
    assert [run.returncode for run in runs] == [0, 0, 0], outputs
    assert {out for out, _ in outputs} == {datasets.KNOWN["mnist"] + "\n"}


# ------------------------------------------------------------------------------------- torchvision, without a network


def stand_in(monkeypatch, name, arrays, shape, convert):
    """torchvision's class `name`, giving `arrays` in another order, and as lists and tensors as torchvision does."""
    import torchvision.datasets

    def make(root, train, download):
        assert download and Path(root).is_dir()
        split = "train" if train else "test"
        a = shuffled(arrays, seed=5)
        x, y = a[f"x_{split}"], a[f"y_{split}"]
        return types.SimpleNamespace(data=convert(x.reshape(-1, *shape)), targets=y.tolist())

    monkeypatch.setattr(torchvision.datasets, name, make)


@pytest.mark.parametrize("name, cls, shape, flat, tensor", [
    ("cifar10", "CIFAR10", (8, 8, 3), (8, 8, 3), False),
    ("cifar100", "CIFAR100", (8, 8, 3), (8, 8, 3), False),
    ("mnist", "MNIST", (8, 8, 1), (8, 8), True),
])
def test_download_gives_the_arrays_of_the_data_file(cache, tmp_path, monkeypatch, name, cls, shape, flat, tensor):
    import torch

    arrays = content(shape=shape)
    known(monkeypatch, name, arrays)
    stand_in(monkeypatch, cls, arrays, flat, torch.from_numpy if tensor else lambda x: x)
    downloaded = datasets.load(name)
    np.savez(tmp_path / f"{name}.npz", **arrays)
    monkeypatch.setenv("FEDLIB_DATA", str(tmp_path))
    monkeypatch.setenv("FEDLIB_CACHE", str(tmp_path / "other"))
    assert same(downloaded, datasets.load(name)) and downloaded.x_train.shape == (60, *shape)


def test_usps_download_is_rounded_not_cut(cache, monkeypatch, tmp_path):
    import torchvision.datasets

    arrays = content(shape=(16, 16, 1))
    known(monkeypatch, "usps", arrays)
    texts = {}
    for file, split in (("usps.bz2", "train"), ("usps.t.bz2", "test")):
        lines = []
        for x, y in zip(arrays[f"x_{split}"], arrays[f"y_{split}"], strict=True):
            pixels = np.round(x.ravel() / 255 * 2 - 1, 3)  # three decimals, as the file at the source
            lines.append(f"{y + 1} " + " ".join(f"{i}:{v:g}" for i, v in enumerate(pixels, 1)))
        texts[file] = bz2.compress("\n".join(lines).encode() + b"\n")
    monkeypatch.setattr(torchvision.datasets.usps, "download_url",
                        lambda url, root, file, md5: Path(root, file).write_bytes(texts[file]))
    assert datasets.load("usps").x_train.shape == (60, 16, 16, 1)


def test_download_without_network(cache, monkeypatch):
    from urllib.error import URLError

    import torchvision.datasets

    def offline(*args, **kwargs):
        raise URLError("no route to host")

    monkeypatch.setattr(torchvision.datasets, "CIFAR10", offline)
    with pytest.raises(InputError, match="'cifar10' could not be downloaded.*no route to host.*set FEDLIB_DATA"):
        datasets.load("cifar10")


def test_data_folder_without_the_file_falls_back_to_the_download(cache, tmp_path, monkeypatch):
    arrays = content(shape=(8, 8, 3))
    known(monkeypatch, "cifar10", arrays)
    stand_in(monkeypatch, "CIFAR10", arrays, (8, 8, 3), lambda x: x)
    monkeypatch.setenv("FEDLIB_DATA", str(tmp_path))
    assert len(datasets.load("cifar10").x_train) == 60


# ------------------------------------------------------------------------------------------------------------- sites


def test_enlarge_is_bilinear_interpolation():
    import torch

    x = content(shape=(16, 16, 1))["x_train"]
    theirs = torch.nn.functional.interpolate(torch.from_numpy(x).permute(0, 3, 1, 2).double(), size=28, mode="bilinear")
    ours = datasets._enlarge(x, 28)
    assert np.abs(ours[..., 0] - theirs[:, 0].numpy()).max() <= 0.5 + 1e-9


def test_digit_sites_are_mnist_and_usps(mnist, monkeypatch):
    big = content(shape=(28, 28, 1))
    small = content(2, shape=(16, 16, 1), train=30, test=10)
    known(monkeypatch, "mnist", big)
    known(monkeypatch, "usps", small)
    np.savez(mnist, **big)
    np.savez(mnist.with_name("usps.npz"), **small)
    monkeypatch.setitem(datasets.KNOWN, "digit_sites", "0" * 64)
    with pytest.raises(InputError, match="fingerprint is") as error:
        datasets.load("digit_sites")
    monkeypatch.setitem(datasets.KNOWN, "digit_sites", str(error.value).split("fingerprint is ")[1][:64])
    d = datasets.load("digit_sites")
    assert d.x_train.shape == (90, 28, 28, 1) and np.bincount(d.site_train).tolist() == [60, 30]
    assert np.bincount(d.site_test).tolist() == [20, 10]
    assert same_rows(d.x_train[d.site_train == 0], big["x_train"])
    assert same_rows(d.x_train[d.site_train == 1], datasets._enlarge(small["x_train"], 28))


def same_rows(a, b):
    return sorted(x.tobytes() for x in a) == sorted(x.tobytes() for x in b)


# --------------------------------------------------------------------------------------------------------- real data


@pytest.fixture(scope="module")
def real_cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize("name, shapes", [
    pytest.param(name, shapes, marks=needs_data(name)) for name, shapes in (
        ("mnist", ((60000, 28, 28, 1), 10000)), ("usps", ((7291, 16, 16, 1), 2007)),
        ("cifar100", ((50000, 32, 32, 3), 10000)), ("tinyimagenet20", ((10000, 64, 64, 3), 1000)))
])
def test_real_set(name, shapes, real_cache, monkeypatch):
    monkeypatch.setenv("FEDLIB_CACHE", str(real_cache))
    d = datasets.load(name)
    assert (d.x_train.shape, len(d.x_test)) == shapes
    assert d.fingerprint == datasets.KNOWN[name]
    assert len(d.classes) == d.y_train.max() + 1 == len(np.unique(d.y_train)) and d.y_train.min() == 0
    assert set(np.unique(d.y_test)) == set(np.unique(d.y_train))


@needs_data("mnist")
@needs_data("usps")
def test_real_digit_sites(real_cache, monkeypatch):
    monkeypatch.setenv("FEDLIB_CACHE", str(real_cache))
    d = datasets.load("digit_sites")
    assert np.bincount(d.site_train).tolist() == [60000, 7291] and np.bincount(d.site_test).tolist() == [10000, 2007]


@needs_data("cifar10")
def test_cifar10_has_the_published_statistics_and_loads_fast(real_cache, monkeypatch):
    monkeypatch.setenv("FEDLIB_CACHE", str(real_cache))
    datasets.load("cifar10")
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        d = datasets.load("cifar10")
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.5  # 0.1 s measured; the rest is for a busy machine
    assert d.mean == pytest.approx((0.49139968, 0.48215841, 0.44653091), abs=1e-8)
    assert d.std == pytest.approx((0.24703223, 0.24348513, 0.26158784), abs=1e-8)


@needs_data("cifar100")
def test_cifar100_names_and_superclasses():
    with np.load(Path(DATA, "cifar100.npz")) as file:
        assert tuple(file["fine_names"]) == datasets.CLASSES["cifar100"]
        assert (np.array(datasets.CIFAR100_COARSE)[file["y_train"]] == file["coarse_train"]).all()
        assert (np.array(datasets.CIFAR100_COARSE)[file["y_test"]] == file["coarse_test"]).all()


@needs_data("tinyimagenet20")
def test_tinyimagenet20_names():
    with np.load(Path(DATA, "tinyimagenet20.npz")) as file:
        assert tuple(file["wnids"]) == datasets.CLASSES["tinyimagenet20"]

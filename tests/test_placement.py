import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlib.models import CNN, MobileNetV2, ResNet
from fedlib.placement import BACKWARD, Devices, Layers, alike, batch_seconds, draw_devices, even, place, profile, saving
from fedlib.spec import InputError

POSITIVE = st.floats(0.1, 10)


def unlimited(speed):
    speed = np.array(speed, float)
    return Devices(speed, np.full(len(speed), np.inf), np.full(len(speed), np.inf))


@st.composite
def problems(draw):
    count, devices = draw(st.integers(1, 7)), draw(st.integers(1, 4))
    layers = Layers(*(np.array(draw(st.lists(POSITIVE, min_size=count, max_size=count))) for _ in range(3)))
    column = st.lists(POSITIVE, min_size=devices, max_size=devices)
    return layers, Devices(np.array(draw(column)), 3 * np.array(draw(column)), np.array(draw(column)))


def seconds_by_device(layers, devices, counts):
    parts = np.split(layers.flops, np.cumsum(counts)[:-1])
    return np.array([part.sum() for part in parts]) / devices.speed


@settings(max_examples=60, deadline=None)
@given(problems(), st.sampled_from(["bottleneck", "total"]))
def test_no_split_is_better(problem, objective):
    layers, devices = problem
    value = {"bottleneck": np.max, "total": np.sum}[objective]
    best = np.inf
    for cuts in itertools.combinations_with_replacement(range(len(layers) + 1), len(devices) - 1):
        counts = np.diff([0, *cuts, len(layers)])
        held = [part.sum() for part in np.split(layers.memory, np.cumsum(counts)[:-1])]
        if (np.array(held) <= devices.memory + 1e-9).all():
            best = min(best, value(seconds_by_device(layers, devices, counts)))
    if not np.isfinite(best):
        with pytest.raises(InputError, match="do not fit"):
            place(layers, devices, objective)
        return
    counts = place(layers, devices, objective)
    assert counts.sum() == len(layers) and (counts >= 0).all()
    assert value(seconds_by_device(layers, devices, counts)) == pytest.approx(best)


@given(problems(), st.integers(1, 5))
def test_a_batch_takes_between_its_bottleneck_and_its_total(problem, microbatches):
    layers, devices = problem
    devices = Devices(devices.speed, np.full(len(devices), np.inf), devices.bandwidth)
    counts = even(layers, devices)
    stage = (1 + BACKWARD) * seconds_by_device(layers, devices, counts)
    used = np.flatnonzero(counts)
    link = (layers.output[np.cumsum(counts) - 1] / devices.bandwidth)[used][:-1]
    time = batch_seconds(layers, devices, counts, microbatches)
    assert stage.max() <= time * (1 + 1e-9)
    assert time <= (stage.sum() + 2 * link.sum()) * (1 + 1e-9)
    assert batch_seconds(layers, devices, counts, 1) == pytest.approx(stage.sum() + 2 * link.sum())


def test_gpipes_schedule_on_equal_devices():
    """D equal stages and m micro-batches: (m + D - 1) / m of a stage, forward and backward."""
    layers, devices = alike(8), unlimited([2.0] * 4)
    for m in (1, 2, 8):
        assert batch_seconds(layers, devices, even(layers, devices), m) == pytest.approx(3 * (m + 3) / m)
        assert saving(layers, devices, m) == pytest.approx(0)


def test_even_split():
    assert even(alike(10), unlimited([1, 1, 1])).tolist() == [4, 3, 3]
    with pytest.raises(InputError, match="device 1"):
        even(alike(4), Devices(np.ones(2), np.array([2.0, 1.0]), np.ones(2)))


def test_a_fast_device_gets_more_and_memory_limits_it():
    layers = alike(10)
    assert place(layers, unlimited([4, 1])).tolist() == [8, 2]
    assert place(layers, unlimited([4, 1]), "total").tolist() == [10, 0]
    limited = Devices(np.array([4.0, 1.0]), np.array([6.0, 9.0]), np.full(2, np.inf))
    assert place(layers, limited).tolist() == [6, 4]
    assert place(layers, limited, "total").tolist() == [6, 4]


def test_what_balancing_saves_depends_on_whether_the_devices_overlap():
    """Many equal layers: a pipeline is as fast as its slowest stage, one batch at a time takes the sum."""
    layers, devices = alike(640), draw_devices(16, slowest=4.0)
    slowdown = 1 / devices.speed
    harmonic = 1 / np.mean(1 / slowdown)
    bottleneck = 1 - harmonic / slowdown.max()
    total = 1 - harmonic / slowdown.mean()
    assert saving(layers, devices, microbatches=1) == pytest.approx(total, abs=0.03)
    assert saving(layers, devices, microbatches=500) == pytest.approx(bottleneck, abs=0.04)
    assert bottleneck > 2 * total


def test_profiles_of_our_networks():
    layers = profile(CNN(channels=(4, 8), dense=(16,)), (28, 28, 1), 10, batch=5)
    macs = [28 * 28 * 9 * 4, 14 * 14 * 9 * 4 * 8, 392 * 16, 16 * 10]
    assert layers.flops.tolist() == [2 * 5 * m for m in macs]
    assert layers.output.tolist() == [4 * 5 * n for n in (14 * 14 * 4, 7 * 7 * 8, 16, 10)]
    weights = [9 * 4 + 4, 9 * 4 * 8 + 8, 392 * 16 + 16, 16 * 10 + 10]
    kept = [28 * 28 * 4 + 14 * 14 * 4, 14 * 14 * 8 + 7 * 7 * 8 + 392, 16 + 16, 10]
    assert layers.memory.tolist() == [4 * (2 * w + 5 * k) for w, k in zip(weights, kept, strict=True)]
    assert len(profile(ResNet(blocks=(2, 2)), (32, 32, 3), 10, 1)) == 1 + 1 + 4 + 1  # stem, norm, blocks, head
    assert len(profile(MobileNetV2(), (32, 32, 3), 10, 1)) > 17


def test_devices_are_drawn_from_their_range():
    slowdown = 1 / draw_devices(500, slowest=3.0, seed=1).speed
    assert 1 <= slowdown.min() < 1.05 and 2.95 < slowdown.max() <= 3
    for fields in ({"count": 0}, {"count": 3, "slowest": 0.5}):
        with pytest.raises(InputError, match="allowed"):
            draw_devices(**fields)
    with pytest.raises(InputError, match="microbatches = 0"):
        batch_seconds(alike(2), unlimited([1]), np.array([2]), 0)

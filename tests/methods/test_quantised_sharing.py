import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlib.methods import Quantised
from fedlib.methods.shared_set import SharedSet


def a_set(values: np.ndarray) -> SharedSet:
    x = values.astype(np.uint8).reshape(-1, 2, 2, 4)
    return SharedSet(x, np.zeros(len(x), int), np.zeros(len(x), bool))


ALL = a_set(np.arange(256))


@given(bits=st.integers(1, 8))
def test_error_levels_and_order(bits):
    copy = Quantised(bits=bits).make(None, ALL, 16)
    v, q = ALL.x.ravel().astype(int), copy.x.ravel().astype(int)
    assert np.abs(q - v).max() <= 255 / (2 * (2**bits - 1)) + 0.5
    assert len(np.unique(q)) == 2**bits and (np.diff(q) >= 0).all() and q[0] == 0 and q[-1] == 255
    again = Quantised(bits=bits).make(None, copy, 16)
    assert np.array_equal(again.x, copy.x)


def test_eight_bits_lose_nothing():
    assert np.array_equal(Quantised(bits=8).make(None, ALL, 16).x, ALL.x)


@pytest.mark.parametrize("bits", [4, 8])
def test_bytes_against_floats_and_the_8_bit_original(bits):
    pixels = Quantised(bits=bits).make(None, ALL, 16).sample_bytes - 1  # one byte is the label's
    assert pixels / (4 * 16) == bits / 32 and pixels / (ALL.sample_bytes - 1) == bits / 8

"""Compiled draws are those of Python's own generator."""

import random

import numba
import numpy as np
import pytest

from placeto_tf.search.random_streams import below, between, pick, shuffle, stream


@numba.njit
def _samples(rng, n):
  """Only compiled code may call these."""
  return below(rng, n), rng.random(), between(rng, 2, n + 2), pick(rng, n)


@numba.njit
def _shuffle(rng, items, count):
  shuffle(rng, items, count)


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1])
def test_a_stream_draws_what_python_draws_from_the_same_seed(seed):
  ours, theirs = stream(seed), random.Random(seed)
  for n in range(1, 1500):  # more than the 624 words of one state
    assert _samples(ours, n) == (
        theirs.randrange(n), theirs.random(), theirs.randint(2, n + 2), int(theirs.random() * n))


def test_a_shuffle_is_python_s_and_leaves_the_rest_alone():
  ours, theirs = np.arange(50), list(range(40))
  _shuffle(stream(3), ours, 40)
  random.Random(3).shuffle(theirs)
  assert ours.tolist() == theirs + list(range(40, 50))

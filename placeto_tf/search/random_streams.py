"""Random numbers for compiled loops: the same sequences as Python's `random.Random` gives.

numpy's MT19937 is the same Mersenne twister (Matsumoto and Nishimura 1998), and numba samples from
numpy's generators without the interpreter. So a seed leads to the same moves in compiled code as in
Python.
"""

from __future__ import annotations

import random

import numpy as np

from placeto_tf.simulation.compiling import part


def stream(seed: int) -> np.random.Generator:
  """Returns the generator whose samples are those of `random.Random(seed)`."""
  # The last of the 625 words is the position in the other 624.
  _, words, _ = random.Random(seed).getstate()
  # numpy's own constructor would derive other words from the seed.
  bits = np.random.MT19937()
  bits.state = {"bit_generator": "MT19937",
                "state": {"key": np.array(words[:-1], dtype=np.uint32), "pos": words[-1]}}
  return np.random.Generator(bits)


@part
def below(rng, n):
  """Samples a whole number below n, as `random.Random.randrange(n)` does.

  Args:
    rng: a `stream`.
    n: from 1 to 2^24.

  Returns:
    An int from 0 to n - 1.
  """
  # randrange samples as many bits as n has, and repeats this while the number is n or more.
  size = 1
  while size <= n:
    size *= 2
  while True:
    # A float32 holds the upper 24 bits of a word.
    found = int(rng.random(None, np.float32) * size)
    if found < n:
      return found


@part
def between(rng, low, high):
  """Samples a whole number, as `random.Random.randint` does.

  Args:
    rng: a `stream`.
    low, high: bounds, both included.

  Returns:
    An int.
  """
  # high is included, as in randint.
  return low + below(rng, high - low + 1)


@part
def pick(rng, count):
  """Samples an index by one `random.Random.random`.

  Args:
    rng: a `stream`.
    count: number of choices.

  Returns:
    An int from 0 to count - 1.
  """
  return int(rng.random() * count)


@part
def shuffle(rng, items, count):
  """Shuffles the first items of an array in place, as `random.Random.shuffle` does.

  Args:
    rng: a `stream`.
    items: the array.
    count: number of items that are shuffled.

  Returns:
    None.
  """
  # Fisher-Yates from the end, the order of Python's shuffle.
  for i in range(count - 1, 0, -1):
    j = below(rng, i + 1)
    items[i], items[j] = items[j], items[i]

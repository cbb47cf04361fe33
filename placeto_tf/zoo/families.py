"""Families: any number of graphs of one kind, each sampled by its index.

`family:cifar10[3]` is one graph, `family:cifar10[0:24]` are 24. A member is a spec of a model in
`registry`, sampled from ranges of its options by a generator that is seeded with the family's name
and the index. So a member is the same everywhere, whatever else is sampled.

Members 24 to 31 are held out to test policies that were trained on other members: no other member
has the same structure (a cell, a pair of layers and steps, or tables).

To add a family, write a function from a generator and an index to a spec, and enter it in
`FAMILIES`.
"""

from __future__ import annotations

import random
import re
from typing import Callable, Dict, List

from placeto_tf.errors import GraphError

PREFIX = "family:"
MAX_INDEX = 10**6  # a longer slice is a typing error
_NMT_STEPS = {1: (8, 16), 2: (6, 10), 3: (5, 7), 4: (4, 5)}  # layers -> steps, for 4,000 ops
# Member -> (layers, steps), none of them in the ranges above, and half of them deeper.
_NMT_KEPT = dict(enumerate(
    [(1, 7), (2, 5), (3, 4), (4, 3), (5, 3), (5, 4), (6, 2), (6, 3)], start=24))


def family_names() -> List[str]:
  """Returns the names of all families, sorted."""
  return sorted(FAMILIES)


def is_family(spec: str) -> bool:
  """Returns whether a spec names members of a family."""
  return spec.startswith(PREFIX)


def expand(spec: str) -> List[str]:
  """Returns the specs of the single graphs that a spec describes.

  "family:cifar10[2:4]" -> ["family:cifar10[2]", "family:cifar10[3]"]; any other spec stands for
  itself.

  Raises:
    GraphError: the family is not known, or its members are not written as [3], [0:24] or [:24].
  """
  if not is_family(spec):
    return [spec]
  match = re.fullmatch(
      r"(\w+)\[(?:(\d{1,7})|(\d{0,7}):(\d{1,7}))\]", spec[len(PREFIX):], re.ASCII)
  name = match.group(1) if match else re.split(r"[\[:]", spec[len(PREFIX):])[0]
  if name not in FAMILIES:
    raise GraphError(f"there is no family {name!r}; choose one of {', '.join(family_names())}")
  if not match:
    raise GraphError(
        f"{spec!r} does not say which graphs of the family are meant; write {PREFIX}{name}[3] for "
        f"one or {PREFIX}{name}[0:24] for several")
  first = int(match.group(2) or match.group(3) or 0)
  last = int(match.group(4)) if match.group(4) else first + 1
  if not first < last <= MAX_INDEX:
    raise GraphError(
        f"{spec!r} holds no graphs; expected a range that ends after its start and at {MAX_INDEX} "
        "at the latest")
  return [f"{PREFIX}{name}[{index}]" for index in range(first, last)]


def member(spec: str) -> str:
  """Returns the model's spec behind "family:cifar10[3]": "enas_conv:cell=3:...".

  Raises:
    GraphError: as `expand`, or the spec stands for several graphs.
  """
  specs = expand(spec)
  if len(specs) != 1:
    raise GraphError(
        f"{spec!r} stands for {len(specs)} graphs where one is wanted; write {specs[0]!r}")
  name, _, number = specs[0][len(PREFIX):-1].partition("[")
  index = int(number)
  # A string seeds Python's generator alike in all versions and processes.
  return FAMILIES[name](random.Random(f"{name}/{index}"), index)


def _cifar10(rng: random.Random, index: int) -> str:
  """Networks of ENAS convolutional cells for images of 32 x 32."""
  return _spec(
      "enas_conv", cell=index, cells=rng.randint(3, 6), nodes=rng.randint(4, 5),
      filters=rng.choice((48, 64, 96, 128)), batch=rng.choice((64, 128, 192)))


def _ptb(rng: random.Random, index: int) -> str:
  """Language models of ENAS recurrent cells."""
  layers = rng.randint(1, 2)
  return _spec(
      "enas_recurrent", cell=index, nodes=rng.randint(6, 10), layers=layers,
      steps=rng.randint(*((5, 10) if layers == 1 else (4, 5))),
      hidden=rng.choice((512, 768, 1024, 1536)), batch=rng.choice((64, 128)))


def _nmt(rng: random.Random, index: int) -> str:
  """Translation with attention; deep members have fewer steps, so that sizes are similar."""
  layers = rng.randint(1, 4)
  steps = rng.randint(*_NMT_STEPS[layers])
  layers, steps = _NMT_KEPT.get(index, (layers, steps))
  return _spec(
      "nmt", layers=layers, steps=steps, hidden=rng.choice((512, 768, 1024, 1536)),
      batch=rng.choice((64, 128)), vocab=rng.choice((8000, 16000, 32000)))


def _recommender(rng: random.Random, index: int) -> str:
  """Recommenders with 20 to 300 tables."""
  return _spec(
      "recommender", tables=round(20 * 15 ** rng.random()), tables_seed=index,
      batch=rng.choice((8192, 16_384, 32_768, 65_536)))


def _spec(model: str, **options: int) -> str:
  return ":".join([model] + [f"{key}={value}" for key, value in options.items()])


FAMILIES: Dict[str, Callable[[random.Random, int], str]] = {
    "cifar10": _cifar10, "nmt": _nmt, "ptb": _ptb, "recommender": _recommender}

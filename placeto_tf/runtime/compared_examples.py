"""`ComparedExamples`: the feeds of a graph and its replicas in each step of a comparison.

Every other step has examples with negative numbers, which masks hide, and other fixed numbers for
random ops. The order of examples does not change, because a loss may weigh examples by position.
"""

from __future__ import annotations

from typing import Dict, List

import numpy as np

from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.graphs.feeds import random_feeds, shapes_of, with_masks
from placeto_tf.replication.reloading import has_free_batch
from placeto_tf.runtime.trained_pair import TrainedPair

_EXAMPLES_PER_REPLICA = 4
_MOST_CHANGES = 8


class ComparedExamples:
  """Makes the examples that a graph and its replicas are fed in each step.

  Attributes:
    alternates: whether every other step has negative numbers and other fixed random numbers.
  """

  def __init__(self, pair: TrainedPair, seed: int, repeated: bool = False):
    """Finds the feeds with a batch dimension, and the number of examples."""
    graph, replicated = pair.graph, pair.replicated
    self.alternates = True
    self._whole, self._seed, self._repeated = pair.whole, seed, repeated
    shapes = graph.origin.feed_shapes
    self._batch_feeds = [
        name for name in replicated.original.feeds
        if shapes.get(name, ())[:1] == (replicated.global_batch,)]
    # The number of parts that a batch is divided into.
    self._divisions = replicated.replicas * _parts_of_feeds(replicated.original)
    self._examples = replicated.global_batch
    # The graph takes any batch: a few examples per replica are enough.
    if self._batch_feeds and all(has_free_batch(graph, name) for name in self._batch_feeds):
      self._examples = min(self._examples, _EXAMPLES_PER_REPLICA * self._divisions)

  def feed(self, step: int) -> Dict[str, np.ndarray]:
    """Returns name of a fed tensor of the graph -> its value."""
    # Streams of different seeds do not overlap within 1000 steps.
    seed = 1000 * self._seed + step
    shapes = {name: shape for name, shape in shapes_of(self._whole.graph).items()
              if name.rpartition(":")[0] not in self._whole.tables}
    found = with_masks(
        random_feeds(self._whole.tf_graph, shapes, seed), np.random.default_rng(seed),
        signed=self.is_other(step))
    for name in self._batch_feeds:
      found[name] = found[name][:self._examples]
      if self._repeated:
        # One replica's examples, for all of them: own statistics equal those of the whole batch.
        each = found[name][:self._examples // self._divisions]
        found[name] = np.concatenate(self._divisions * [each])
    # Captured tensors, such as class weights, are the same in all steps.
    found.update(self._whole.given)
    return found

  @property
  def groups(self) -> List[np.ndarray]:
    """Returns indices of examples, one each; of many, groups of consecutive ones."""
    return np.array_split(np.arange(self._examples), min(self._examples, _MOST_CHANGES))

  def changed(self, step: int, group: np.ndarray) -> Dict[str, np.ndarray]:
    """Returns the feed of a step in which only some examples are other ones.

    Args:
      step: of which feed it is.
      group: indices of the examples that change.

    Returns:
      Name of a fed tensor -> its value.
    """
    feed, other = self.feed(step), self.feed(step + 2)
    for name in self._batch_feeds:
      feed[name] = feed[name].copy()
      feed[name][group] = other[name][group]
    return feed

  def is_other(self, step: int) -> bool:
    """Returns whether the step has negative numbers and the other fixed random numbers."""
    return self.alternates and step % 2 == 1


def _parts_of_feeds(graph: ComputationGraph) -> int:
  """Returns the number of parts into which a graph divides its batch itself."""
  feeds = {name.partition(":")[0] for name in graph.feeds}
  return max([1, *(
      node.attr["num_split"].i for node in graph.origin.graph_def.node
      if node.op == "Split" and feeds & {text.partition(":")[0] for text in node.input})])

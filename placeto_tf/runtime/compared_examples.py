"""`ComparedExamples`: what a graph and its replicas are fed in each step of a comparison.

Every other step has examples with negative numbers, which masks leave out, and draws other numbers.
(The examples stay in their order: a loss may weigh them by their position.)
"""

from __future__ import annotations

from typing import Dict

import numpy as np

from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.graphs.feeds import make_feeds, with_masks
from placeto_tf.replication.free_batch import has_free_batch
from placeto_tf.runtime.trained_pair import TrainedPair

_EXAMPLES_PER_REPLICA = 4


class ComparedExamples:
  """See the module.

  Attributes:
    alternates: whether every other step is the other way.
  """

  def __init__(self, pair: TrainedPair, seed: int, repeated: bool = False):
    """Args:
      pair: which is fed.
      seed: of the examples.
      repeated: whether all replicas have the same ones.
    """
    graph, replicated = pair.graph, pair.replicated
    self.alternates = True
    self._whole, self._seed, self._repeated = pair.whole, seed, repeated
    shapes = graph.origin.feed_shapes
    self._batch_feeds = [
        name for name in replicated.feeds
        if shapes.get(name, ())[:1] == (replicated.global_batch,)]
    # Into how many parts a batch is divided in the end.
    self._divisions = replicated.replicas * _parts_of_feeds(replicated.original)
    self._examples = replicated.global_batch
    if self._batch_feeds and all(has_free_batch(graph, name) for name in self._batch_feeds):
      self._examples = min(self._examples, _EXAMPLES_PER_REPLICA * self._divisions)

  def feed(self, step: int) -> Dict[str, np.ndarray]:
    """Returns name of a fed tensor of the graph -> its value."""
    seed = 1000 * self._seed + step
    found = with_masks(
        make_feeds(self._whole.graph, self._whole.tf_graph, seed=seed),
        np.random.default_rng(seed), signed=self.is_other(step))
    for name in self._batch_feeds:
      found[name] = found[name][:self._examples]
      if self._repeated:
        each = found[name][:self._examples // self._divisions]
        found[name] = np.concatenate(self._divisions * [each])
    found.update(self._whole.given)
    return found

  def is_other(self, step: int) -> bool:
    """Returns whether the step has negative numbers, and draws the other ones."""
    return self.alternates and step % 2 == 1


def _parts_of_feeds(graph: ComputationGraph) -> int:
  """Returns the number of parts into which a graph divides its batch itself."""
  feeds = {name.partition(":")[0] for name in graph.feeds}
  return max([1, *(
      node.attr["num_split"].i for node in graph.origin.graph_def.node
      if node.op == "Split" and feeds & {text.partition(":")[0] for text in node.input})])

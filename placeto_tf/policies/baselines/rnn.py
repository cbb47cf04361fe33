"""The RNN-based placer of Mirhoseini et al. 2017 (arXiv 1706.04972) on the groups of one graph.

A group's embedding concatenates three parts: learned embeddings of op types, summed with the
logarithms of the numbers of ops as weights; the sizes of the group's largest outputs; and its
adjacency to all groups. The sequence has the groups in the topological order of their first ops. As
in the paper, the policy learns from scratch on one graph.

Dimensions: B placements side by side, G groups, T types of ops, D devices.
"""

from __future__ import annotations

import dataclasses
from typing import Tuple

import numpy as np

from placeto_tf.encoding.grouped_graph import GroupedGraph
from placeto_tf.grouping import group_ops
from placeto_tf.policies.baselines import op_features
from placeto_tf.policies.baselines.one_shot import OneGraphPolicy, OneShotPolicy, ReinforceConfig
from placeto_tf.policies.baselines.sequence_placer import PlacerConfig, SequencePlacer, initial
from placeto_tf.problem.placement_problem import PlacementProblem

import tensorflow as tf  # isort: skip

_SIZES = 6  # number of outputs of a group whose sizes are features


@dataclasses.dataclass(frozen=True)
class RnnConfig:
  """Settings of the RNN-based placer, with the paper's values where known.

  max_groups: the most groups of the colocation heuristic; 83 to 280 in the paper.
  placer: the network; its encoder reads in one direction.
  type_width: width of an op type's embedding.
  training: settings of REINFORCE.
  """

  max_groups: int = 128
  placer: PlacerConfig = PlacerConfig(hidden=64)
  type_width: int = 20
  training: ReinforceConfig = ReinforceConfig(learning_rate=4e-3, final_learning_rate=4e-3)


class RnnPolicy(OneShotPolicy):
  """The policy of one problem; it places the problem's groups."""

  def __init__(self, problem: PlacementProblem, config: RnnConfig, seed: int = 0):
    """Makes an untrained policy."""
    super().__init__(problem.num_groups, problem.num_devices - 1, "rnn")
    rng = np.random.default_rng(seed)
    graph, grouping = problem.graph, problem.grouping
    g, groups = grouping.num_groups, grouping.group_of_op
    counts = np.log1p(op_features.type_counts(graph, groups, g))  # [G, T]
    grouped = GroupedGraph.of(problem)
    # [G, S + 2 G]: sizes of outputs, then adjacency.
    known = np.concatenate([
        op_features.output_sizes(graph, problem.costs, groups, g, _SIZES),
        op_features.adjacency(grouped.sources, grouped.targets, g)], axis=1)
    # The paper does not mention this scaling to mean 0 and deviation 1 over the groups. Without it,
    # groups are so similar that an update moves all of them alike.
    counts, known = op_features.standardized(counts), op_features.standardized(known)
    self._counts, self._known = tf.constant(counts), tf.constant(known)
    self._allowed = tf.constant(problem.allowed[None])  # [1, G, D]
    # [T, type_width] embeddings of op types, trained.
    self._types = tf.Variable(initial(rng, (counts.shape[1], config.type_width)), name="types")
    # Placer: [1, G, F] -> devices [B, G].
    self.placer = SequencePlacer(
        config.type_width + self._known.shape[1], problem.num_devices, config.placer, rng)
    # The encoder runs once for all samples, since they share their features.
    self._sample = tf.function(
        lambda noise: self.placer.sample(self.features(), self._allowed, noise), autograph=False)

  def features(self) -> tf.Tensor:
    """Returns [1, G, F] the groups' embeddings."""
    return tf.concat([tf.matmul(self._counts, self._types), self._known], axis=1)[None]

  def sample(self, rng: np.random.Generator, count: int) -> np.ndarray:
    """Samples devices; see the base class.

    Args:
      rng: the source of randomness.
      count: number of samples.

    Returns:
      [count, G] int32 devices.
    """
    # [count, G, D]
    noise = rng.gumbel(size=(count,) + tuple(self._allowed.shape[1:])).astype(np.float32)
    return self._sample(tf.constant(noise)).numpy()

  def log_prob(self, decisions: tf.Tensor) -> tf.Tensor:
    """Returns the log probability of each device, given the devices of earlier groups.

    Args:
      decisions: [B, G] int32 devices.

    Returns:
      [B, G] float32.
    """
    return self.placer.log_prob(self.features(), self._allowed, decisions)


def rnn_policy(
    problem: PlacementProblem, config: RnnConfig, seed: int
) -> Tuple[PlacementProblem, RnnPolicy]:
  """Makes an untrained policy for a problem.

  Args:
    problem: its own groups are not used.
    config: see `RnnConfig`.
    seed: of the weights.

  Returns:
    The problem in the groups of the colocation heuristic, and the policy.
  """
  grouped = problem.regrouped(group_ops(
      problem.graph, problem.costs, problem.allowed_ops, max_groups=config.max_groups,
      method="single_consumer"))
  return grouped, RnnPolicy(grouped, config, seed)


POLICY = OneGraphPolicy(RnnConfig(), rnn_policy)

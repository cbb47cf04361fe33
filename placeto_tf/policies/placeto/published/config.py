"""`PublishedConfig`: the configuration of the published process."""

from __future__ import annotations

import dataclasses

from placeto_tf.environments.visit_environment import VisitConfig
from placeto_tf.policies.placeto.published.network import NetworkConfig


@dataclasses.dataclass(frozen=True)
class PublishedConfig:
  """The configuration of the published process, by default as in the paper or its authors' code.

  From the paper (section 3, appendix): every group is visited once an episode, in topological
  order, one a step; the reward is the decrease of step time; 8 rounds of messages; REINFORCE
  without a discount; a baseline for each step, the mean over the last 10 episodes; Adam from 1e-3
  to 1e-4; gradients clipped at 1.25; 8 workers.

  From the authors' code: all episodes start from one given placement (its option
  `--vary-init-state` is `environment.start=random` here); the gradients of all steps and workers
  are summed before they are clipped; Glorot's weights in all layers, also in the last; devices
  one-hot; start times and memory among the features.

  Differences from the paper and the authors' code:

  - groups come from `grouping`, and their edges from `GroupedGraph.flow`; the authors' graphs of
    groups are acyclic from the beginning;
  - rewards are shares of the step time of the given start, not seconds, so that graphs of
    different sizes count alike. The entropy bonus is relative to these rewards: it falls linearly
    from 0.003 to 0, not from 1.0 as in the paper, which publishes no schedule. From 1.0, the
    policy is still uniform after 92,160 decisions;
  - the transform of a group's own features has two layers, like the other functions, not three as
    in the authors' code. With three layers, the policy learns to distinguish four equal devices
    later, or not at all in so many decisions (docs/results/placeto_figure_by_figure.md has both);
  - each graph has its own baseline, while the authors' baseline is the mean over their workers;
  - the authors' options to reward the best step time of an episode, or the logarithm of the step
    time, and their cap on the penalty for memory, are left out;
  - Adam's epsilon is 1e-8; a group may not go to a device that cannot run it.

  Attributes:
    environment, network: settings of the environment and of the network.
    learning_rate, final_learning_rate: at the start and the end of the budget.
    entropy, final_entropy: weight of a decision's entropy, at the start and the end of the budget.
    sum_gradients: whether the gradients of an update's decisions are summed before they are
      clipped, as the authors' code does; else they are averaged.
  """

  environment: VisitConfig = VisitConfig()
  network: NetworkConfig = NetworkConfig()
  learning_rate: float = 1e-3
  final_learning_rate: float = 1e-4
  entropy: float = 0.003
  final_entropy: float = 0.0
  sum_gradients: bool = True

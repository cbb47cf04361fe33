"""`PlacetoConfig`: all choices of Placeto's training; `paper` has those of the paper."""

from __future__ import annotations

import dataclasses
from typing import Optional, Tuple

from placeto_tf.errors import PlacementError, check_at_least
from placeto_tf.policies.placeto.network import NetworkConfig
from placeto_tf.training.placement_environment import EnvironmentConfig


@dataclasses.dataclass(frozen=True)
class PlacetoConfig:
  """Choices, with the paper's value where the default departs from it.

  Attributes:
    environment: by default 8 episodes side by side, 4 groups per step, every episode from the best
      placement so far and a worse placement undone.
    network: by default 2 rounds of message passing, which cost a quarter of 8.
    credit: what a decision is rewarded with: "returns", as in the paper, all that the episode earns
      from it on, less the mean return at that step of a graph's last episodes; "ranks", the rank of
      its own gain among those of an update that moved a group, from -1 to 1 (otherwise a few moves
      that cost half a step would dominate); or "gains", what the current group would gain on each
      allowed device, which is simulated, less the mean, over the deviation: an update then follows
      the gradient of the expected gain. With the last two nothing is discounted: a decision stands
      alone.
    steps_per_update: into updates of so many steps of all episodes these are divided once they have
      been played; None, as in the paper, is one update of whole episodes.
    hold_keep: whether the bias for a group's present device is adjusted, not learned, so that the
      policy keeps leaving `network.initial_keep` of the groups where they are; False in the paper.
      A learned bias drifts to moving nothing or everything.
    learning_rate, final_learning_rate: at the start and the end of the budget; 1e-3 to 1e-4.
    entropy, final_entropy: weight of a decision's entropy beside its gain, at the start and the end
      of the budget; see `paper`.
    levels: (groups over the problem's groups, share of the budget) one after the other: the later
      ones start from what the earlier found, on finer groups that keep it, with the weights
      learned so far; ((1, 1),) in the paper.
    sum_gradients: whether the gradients of an update's decisions are summed before they are
      clipped, as the authors' code does; else they are averaged.
  """

  environment: EnvironmentConfig = EnvironmentConfig(
      num_episodes=8, groups_per_step=4, start="best", undo=True)
  network: NetworkConfig = NetworkConfig(rounds=2)
  credit: str = "ranks"
  steps_per_update: Optional[int] = 16
  hold_keep: bool = True
  learning_rate: float = 3e-3
  final_learning_rate: float = 3e-4
  entropy: float = 0.01
  final_entropy: float = 0.001
  levels: Tuple[Tuple[float, float], ...] = ((1.0, 0.4), (4.0, 0.6))
  sum_gradients: bool = False

  def __post_init__(self) -> None:
    if self.credit not in ("returns", "ranks", "gains"):
      raise PlacementError(f"credit is {self.credit!r}; expected returns, ranks or gains")
    if self.credit == "returns" and self.steps_per_update is not None:
      raise PlacementError(
          f"steps_per_update is {self.steps_per_update}; expected none: returns are of whole "
          "episodes")
    if self.steps_per_update is not None:
      check_at_least(1, self, "steps_per_update")
    if not self.levels:
      raise PlacementError("levels is empty; expected at least one pair of numbers")

  @classmethod
  def paper(cls) -> PlacetoConfig:
    """The published process; what the paper leaves open is as in its authors' code.

    From the paper (section 3, appendix): every group is visited once an episode, in topological
    order, one a step; the reward is the fall of the step time; 8 rounds of messages; REINFORCE
    without a discount; a baseline for each step, the mean over the last 10 episodes; Adam from 1e-3
    to 1e-4; gradients clipped at 1.25; 8 workers.

    From the authors' code: all episodes start from one given placement (its option
    `--vary-init-state` is `environment.start=random` here); the gradients of all steps and workers
    are summed before they are clipped; Glorot's weights in all layers, the last too; devices
    one-hot; start times and memory among the features.

    What differs:

    - groups come from `grouping`, and their edges from `GroupedGraph.flow`: the authors' are
      groups of an acyclic graph to begin with;
    - rewards are shares of the step time of the given start, not seconds, so that graphs of
      different sizes count alike. The entropy bonus is relative to those: it falls from 0.003 to 0
      in a straight line, not from 1.0 as in the paper, which publishes no schedule. From 1.0 the
      policy stays uniform to the end of 92,160 decisions;
    - the transform of a group's own features has two layers, as the other functions do, not three
      as in the authors' code, with which four equal devices are told apart later or not at all in
      so many decisions (docs/results/placeto_figure_by_figure.md has both);
    - the baseline is of each graph, while the authors' is the mean over their workers;
    - the authors' options to reward the best step time of an episode, or the logarithm of the step
      time, and their cap on the penalty for memory, are left out;
    - Adam's epsilon is 1e-8; a group may not go where it cannot run.
    """
    return cls(
        environment=EnvironmentConfig(num_episodes=8, start="given"),
        network=NetworkConfig(
            tied=False, skip=False, weigh_edges=False, squash=False, mean_pooling=False,
            initial_keep=None, least_exploration=0.0, head_scale=1.0),
        credit="returns", steps_per_update=None, hold_keep=False, learning_rate=1e-3,
        final_learning_rate=1e-4, entropy=0.003, final_entropy=0.0, levels=((1.0, 1.0),),
        sum_gradients=True)

  @classmethod
  def tied(cls) -> PlacetoConfig:
    """The paper's process with equal devices tied, and changes that let it learn in minutes.

    The gain of each device is simulated; the entropy bonus falls from 0.1 to 0.05. Episodes start
    anywhere. Four rounds of messages of width 8, weighed by bytes, with a tanh after each, are
    enough, and poolings see raw features too. Episodes of 24 graphs take their steps together, and
    an update follows 4 steps of them.
    """
    paper = cls.paper()
    return dataclasses.replace(
        paper, environment=dataclasses.replace(
            paper.environment, num_episodes=24, start="random"),
        network=dataclasses.replace(
            paper.network, tied=True, skip=True, weigh_edges=True, squash=True, rounds=4, width=8,
            head_scale=0.01),
        credit="gains", steps_per_update=4, learning_rate=3e-3, final_learning_rate=3e-4,
        entropy=0.1, final_entropy=0.05, sum_gradients=False)

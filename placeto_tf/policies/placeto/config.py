"""`PlacetoConfig`: all choices of Placeto's training; `paper` has those of the paper."""

from __future__ import annotations

import dataclasses
from typing import Optional, Tuple

from placeto_tf.errors import PlacementError
from placeto_tf.policies.placeto.network import NetworkConfig
from placeto_tf.training.placement_environment import EnvironmentConfig


@dataclasses.dataclass(frozen=True)
class PlacetoConfig:
  """Choices for training on one graph, with the paper's value where the default departs from it.

  Attributes:
    environment: by default 8 episodes side by side, 4 groups per step, every episode from the best
      placement so far and a worse placement undone.
    network: by default 2 rounds of message passing, which cost a quarter of 8.
    discount: of rewards; 1 in the paper.
    baseline: "step", the mean return at a step over the last updates as in the paper, "batch",
      its mean over the episodes side by side, "moves", its mean over the decisions since the last
      update that moved a group, where those that moved none teach nothing, or "none". Against the
      other baselines a policy near a local optimum learns to leave everything where it is.
    baseline_updates: the baseline of a step is the mean over so many of a graph's last updates,
      each by the mean of its episodes; 10 in the paper.
    steps_per_update: steps of all episodes between two updates; None, as in the paper, is a whole
      episode. On one graph returns are cut off at an update; on a family, episodes are played to
      their end, and then learned from in parts of so many steps.
    decisions_per_update: how many of those steps' decisions, drawn at random, an update learns
      from; None, as in the paper, is all.
    values: "taken", as in the paper: a decision's value is the reward it earned; or "all": when a
      family is trained, every allowed device of the current group is simulated, and an update
      follows the gradient of the expected immediate reward. "all" needs discount 0.
    advantages: "ranks", the rank of a decision among those of its update, from -1 to 1 (otherwise a
      few moves that cost half a step would dominate), "normalized", over their
      standard deviation, or "raw" as in the paper.
    hold_keep: whether the bias for a group's present device is adjusted, not learned, so that the
      policy keeps leaving `network.initial_keep` of the groups where they are; False in the paper.
      A learned bias drifts to moving nothing or everything.
    learning_rate, final_learning_rate: at the start and the end of the budget; 1e-3 to 1e-4.
    entropy, final_entropy: weight of the entropy bonus, decayed likewise; from 1.0 in the paper.
    entropy_decay: "linear", or "exponential", which needs a final_entropy above 0.
    entropy_until: share of the budget after which the entropy bonus has its final value; None is
      all of it.
    gradient_clip: largest norm of a gradient; 1.25.
    clip_globally: whether that is the norm of the whole gradient, as in the paper, or of each
      variable's.
    levels: (groups over the problem's groups, share of the budget) one after the other: the later
      ones start from what the earlier found, on finer groups that keep it, with the weights
      learned so far; ((1, 1),) in the paper.
    sum_gradients: whether the gradients of the episodes of an update are summed, as the paper does
      with those of its workers, before they are clipped; else they are averaged.
    learn: False leaves the policy as it was initialized, to see what learning adds.
  """

  environment: EnvironmentConfig = EnvironmentConfig(
      num_episodes=8, groups_per_step=4, start="best", undo_steps=1)
  network: NetworkConfig = NetworkConfig(rounds=2)
  discount: float = 0.0
  baseline: str = "moves"
  baseline_updates: int = 64
  steps_per_update: Optional[int] = 16
  decisions_per_update: Optional[int] = 64
  values: str = "taken"
  advantages: str = "ranks"
  hold_keep: bool = True
  learning_rate: float = 3e-3
  final_learning_rate: float = 3e-4
  entropy: float = 0.01
  final_entropy: float = 0.001
  entropy_decay: str = "linear"
  entropy_until: Optional[float] = None
  gradient_clip: float = 1.25
  clip_globally: bool = False
  levels: Tuple[Tuple[float, float], ...] = ((1.0, 0.4), (4.0, 0.6))
  sum_gradients: bool = False
  learn: bool = True

  def __post_init__(self) -> None:
    if self.baseline not in ("step", "batch", "moves", "none"):
      raise PlacementError(
          f"baseline is {self.baseline!r}; expected one of step, batch, moves, none")
    if self.values not in ("taken", "all"):
      raise PlacementError(f"values is {self.values!r}; expected taken or all")
    if self.values == "all" and self.discount:
      raise PlacementError(f"discount is {self.discount}; expected 0 where values is 'all'")
    if self.advantages not in ("ranks", "raw", "normalized"):
      raise PlacementError(
          f"advantages is {self.advantages!r}; expected ranks, raw or normalized")
    if self.entropy_decay not in ("linear", "exponential"):
      raise PlacementError(
          f"entropy_decay is {self.entropy_decay!r}; expected linear or exponential")
    if self.entropy_decay == "exponential" and not min(self.entropy, self.final_entropy) > 0:
      raise PlacementError(
          f"final_entropy is {self.final_entropy}; an exponential decay needs more than 0")
    if self.entropy_until is not None and not 0 < self.entropy_until <= 1:
      raise PlacementError(
          f"entropy_until is {self.entropy_until}; expected a share above 0, 1 at most")
    if not 0 <= self.discount <= 1:
      raise PlacementError(f"discount is {self.discount}; expected a number from 0 to 1")
    for name in ("steps_per_update", "decisions_per_update", "baseline_updates"):
      value = getattr(self, name)
      if value is not None and value < 1:
        raise PlacementError(f"{name} is {value}; expected at least 1")

  @classmethod
  def paper(cls) -> PlacetoConfig:
    """The paper's choices; where it leaves one open, that of its authors' code.

    Every episode starts from a random placement and visits every group once, one per step, in
    topological order. Eight episodes side by side are the paper's workers, in a family each with a
    graph of its own (`PlacetoTrainingConfig.graphs_per_update`). Departures from the paper:

    - groups come from `grouping`, and their edges from `encoding.structure`: the authors' are
      groups of an acyclic graph to begin with;
    - a group's raw features have its memory besides compute time, output bytes, device, flags and
      start;
    - rewards are shares of the step time of the given start, not seconds, so that graphs of
      different sizes count alike; the entropy bonus is relative to those;
    - Adam's epsilon is 1e-8, weights begin as Glorot's; those of the last layer are a hundredth of
      that, so that the untrained policy draws all devices alike;
    - the device of a group is masked where the group may not run.
    """
    return cls(
        environment=EnvironmentConfig(num_episodes=8, start="random"),
        network=NetworkConfig(
            tied=False, skip=False, weigh_edges=False, squash=False, mean_pooling=False,
            initial_keep=None, least_exploration=0.0),
        discount=1.0, baseline="step", baseline_updates=10, steps_per_update=None,
        decisions_per_update=None, advantages="raw", hold_keep=False, learning_rate=1e-3,
        final_learning_rate=1e-4, entropy=1.0, final_entropy=0.0, clip_globally=True,
        levels=((1.0, 1.0),), sum_gradients=True)

  @classmethod
  def tied(cls) -> PlacetoConfig:
    """The paper's choices with equal devices tied, and changes that let it learn in minutes.

    The value of a decision is the gain of its own move (discount 0), simulated for each device;
    advantages are divided by their standard deviation, and the entropy bonus falls from 0.1 to
    0.05, not from 1 to 0. Four rounds of messages of width 8, weighed by bytes, with a tanh after
    each, are enough, and poolings see raw features too. Episodes of 24 graphs take their steps
    together, and an update follows 4 steps of them.
    """
    paper = cls.paper()
    return dataclasses.replace(
        paper, environment=dataclasses.replace(paper.environment, num_episodes=24),
        network=dataclasses.replace(
            paper.network, tied=True, skip=True, weigh_edges=True, squash=True, rounds=4, width=8),
        discount=0.0, values="all", steps_per_update=4, advantages="normalized", learning_rate=3e-3,
        final_learning_rate=3e-4, entropy=0.1, final_entropy=0.05, entropy_decay="exponential",
        sum_gradients=False)

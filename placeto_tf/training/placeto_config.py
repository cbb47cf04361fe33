"""`PlacetoConfig`: every choice of Placeto's training, and which of them are the paper's."""

from __future__ import annotations

import dataclasses
from typing import Optional, Tuple

from placeto_tf.environments.placement_environment import EnvironmentConfig
from placeto_tf.errors import PlacementError
from placeto_tf.policies.placeto.network import NetworkConfig


@dataclasses.dataclass(frozen=True)
class PlacetoConfig:
  """Choices for training on one graph, with the paper's value where the default departs from it.

  Attributes:
    environment: by default 8 episodes side by side, 4 groups a step, every episode from the best
      placement so far and a worse placement undone.
    network: by default 2 rounds of message passing, which cost a quarter of 8.
    discount: of rewards; 1 in the paper.
    baseline: "step", the mean return at a step over the last episodes as in the paper, "batch",
      its mean over the episodes side by side, "moves", its mean over the decisions since the last
      update that moved a group, where those that moved none teach nothing, or "none". Against the
      other baselines a policy near a local optimum learns to leave everything where it is.
    baseline_episodes: 10 in the paper.
    steps_per_update: steps of all episodes between two updates; None, as in the paper, is a whole
      episode. Returns are cut off at an update.
    decisions_per_update: how many of those steps' decisions, drawn at random, an update learns
      from; None, as in the paper, is all.
    advantages: "ranks", where a decision stands among those of its update, from -1 to 1 (a few
      moves that cost half a step would otherwise drown the rest), "normalized", over their
      standard deviation, or "raw" as in the paper.
    hold_keep: whether the liking for the device a group is on is adjusted, not learned, so that
      policies go on leaving `network.initial_keep` of the groups where they are; False in the
      paper. Learned, it drifts to moving nothing or everything.
    learning_rate, final_learning_rate: at the start and the end of the budget; 1e-3 to 1e-4.
    entropy, final_entropy: weight of the entropy bonus, decayed likewise; from 1.0 in the paper.
    entropy_decay: "linear", or "exponential", which needs a final_entropy above 0.
    entropy_until: share of the budget after which the entropy bonus has fallen to its last; None
      is all of it.
    gradient_clip: largest norm of a gradient; 1.25.
    clip_globally: whether that is the norm of the whole gradient, as in the paper, or of each
      variable's.
    levels: (groups over the problem's groups, share of the budget) one after the other: the later
      ones start from what the earlier found, on finer groups that keep it, with the weights
      learned so far; ((1, 1),) in the paper.
    learn: False leaves the policy as it was initialized, to see what learning adds.
  """

  environment: EnvironmentConfig = EnvironmentConfig(
      num_episodes=8, groups_per_step=4, start="best", undo_steps=1)
  network: NetworkConfig = NetworkConfig(rounds=2)
  discount: float = 0.0
  baseline: str = "moves"
  baseline_episodes: int = 64
  steps_per_update: Optional[int] = 16
  decisions_per_update: Optional[int] = 64
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
  learn: bool = True

  def __post_init__(self) -> None:
    if self.baseline not in ("step", "batch", "moves", "none"):
      raise PlacementError(
          f"baseline is {self.baseline!r}; expected one of step, batch, moves, none")
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
    for name in ("steps_per_update", "decisions_per_update", "baseline_episodes"):
      value = getattr(self, name)
      if value is not None and value < 1:
        raise PlacementError(f"{name} is {value}; expected at least 1")

  @classmethod
  def paper(cls) -> PlacetoConfig:
    """The paper's choices; 8 episodes side by side stand for its 8 workers."""
    return cls(
        environment=EnvironmentConfig(num_episodes=8),
        network=NetworkConfig(
            weigh_edges=False, squash=False, mean_pooling=False, initial_keep=None,
            least_exploration=0.0, device_scores=False),
        discount=1.0, baseline="step", baseline_episodes=10, steps_per_update=None,
        decisions_per_update=None, advantages="raw", hold_keep=False, learning_rate=1e-3,
        final_learning_rate=1e-4, entropy=1.0, final_entropy=0.0, clip_globally=True,
        levels=((1.0, 1.0),))

  @classmethod
  def family(cls) -> PlacetoConfig:
    """The paper's choices but for three, without which training on a family did not learn.

    Embeddings pass a tanh after every round (without, untrained logits lie hundreds apart and the
    policy has one device from the first episode on), advantages are divided by their standard
    deviation, and the entropy bonus falls from 0.03, not from 1, which outweighs them.
    """
    paper = cls.paper()
    return dataclasses.replace(
        paper, network=dataclasses.replace(paper.network, squash=True), advantages="normalized",
        entropy=0.03, final_entropy=0.003, entropy_decay="exponential")

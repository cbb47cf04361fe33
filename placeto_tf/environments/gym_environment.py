"""`placeto_tf/Placement-v0`: Placeto's decision process as a Gymnasium environment.

  import gymnasium

  environment = gymnasium.make(
      "placeto_tf.environments.gym_environment:placeto_tf/Placement-v0", graph="zoo:rnnlm",
      cluster="k80:4", max_groups=32)

The process is `MoveProcess`; `move_environment` offers the same process to
tf-agents. On levels from coarse groups to fine ones, an action moves a group to a device (an option
edge of the GraphTensor). Each move is simulated once, and undone if it makes the placement worse.
The reward is the decrease of the objective (step time plus the memory penalty) divided by the
objective of the best of one device, the expert and METIS; it is 0 if the move was undone. So an
episode that begins there returns the relative improvement: 0.3 is 30 % of that step time.

Observations, a `Dict`:

  pair         [M, D, F] Box        features of option edges, see `pair_features`; 0 for pairs
                                    without an option edge
  placement    [M] MultiDiscrete    device of each observed group
  action_mask  [M D] MultiBinary    moves that are still open

Action `m D + d` moves the m-th observed group to device d. `unwrapped.process` has the groups,
`unwrapped.problem` counts evaluations and keeps the best placement.

Dimensions: M observed groups, D devices, F pair features, N ops.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, Optional, Tuple

import gymnasium
import numpy as np
from gymnasium import spaces

from placeto_tf.clusters import Cluster
from placeto_tf.encoding.pair_features import CLIP, NUM_FEATURES
from placeto_tf.environments.move_process import MoveProcess
from placeto_tf.environments.schedule import Schedule
from placeto_tf.errors import PlacementError
from placeto_tf.graphs import load_graph
from placeto_tf.placements import Placement
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.search.starts import reference_placers

NAME = "placeto_tf/Placement-v0"
# Single moves, which are not gathered.
ROUNDS = Schedule(rounds=(300, 300, 300), several=0)
STARTS = ("best", "random")

Observation = Dict[str, Any]


class PlacementEnv(gymnasium.Env):
  """One graph on one cluster.

  Attributes:
    problem: counts evaluations (`problem.search_log.evaluations`) and keeps the best placement of
      all episodes (`problem.search_log.best_known`, [N] devices of ops).
    process: of the present episode.
  """

  metadata: Dict[str, Any] = {"render_modes": []}

  def __init__(
      self, graph: Any, cluster: Any = "k80:4", *, grouping: str = "heavy_edge",
      max_groups: int = 32, start: str = "best", max_evaluations: Optional[int] = None,
      schedule: Schedule = ROUNDS, **options: Any):
    """Loads the graph, estimates costs and groups ops.

    Args:
      graph: as for `load_graph`, such as a file or "zoo:inception_v3".
      cluster: a `Cluster`, or a text for `Cluster.parse`.
      grouping, max_groups: as for `place`; M is `max_groups`, and levels with more groups show a
        random sample of them.
      start: placement from which episodes begin: "best", the best of single device, expert and
        METIS, or "random", with a device for each group that is sampled in each episode.
      max_evaluations: an episode is truncated once it has evaluated so many placements.
      schedule: the rounds and levels of an episode, in which no moves are gathered.
      **options: of `load_graph`, such as `batch_size`.

    Raises:
      PlacetoError: an argument is wrong.
    """
    if start not in STARTS:
      raise PlacementError(f"start is {start!r}; expected {' or '.join(STARTS)}")
    cluster = cluster if isinstance(cluster, Cluster) else Cluster.parse(cluster)
    self.problem = problem = PlacementProblem.build(
        load_graph(graph, **options), cluster, grouping=grouping, max_groups=max_groups)
    self._start, self._max_evaluations = start, max_evaluations
    self._schedule = dataclasses.replace(schedule, several=0)
    self._num_groups = problem.num_groups
    m, d = problem.allowed.shape  # M, D
    self.observation_space = spaces.Dict({
        "pair": spaces.Box(-CLIP, CLIP, (m, d, NUM_FEATURES), np.float32),
        "placement": spaces.MultiDiscrete(np.full(m, d)),
        "action_mask": spaces.MultiBinary(m * d)})
    self.action_space = spaces.Discrete(m * d)
    # [R, N] the reference placements; the best of them is the start.
    found = np.stack([placer(problem) for placer in reference_placers().values()])
    self._given = found[problem.evaluate_ops(found).best()]
    # Rewards are divided by this objective, whatever the start of the episode.
    self._scale_us = float(problem.evaluate_ops(self._given).objective_us[0])

  @property
  def placement(self) -> Placement:
    """Returns the best placement of all episodes."""
    problem = self.problem
    return Placement.from_indices(problem.graph, problem.cluster, problem.search_log.best_known)

  def reset(
      self, *, seed: Optional[int] = None, options: Optional[Dict[str, Any]] = None
  ) -> Tuple[Observation, Dict[str, Any]]:
    """Begins an episode.

    Args:
      seed: of all samples from now on.
      options: not used.

    Returns:
      The observation, and `step_time_us` and `fits` of the placement.
    """
    super().reset(seed=seed)
    problem, placement = self.problem, self._given
    if self._start == "random":
      # The largest of uniform numbers over the allowed devices: each equally likely.
      samples = self.np_random.random(problem.allowed.shape)
      placement = problem.grouping.expand(
          np.where(problem.allowed, samples, -1.0).argmax(axis=1).astype(np.int32))
    used, at_most = problem.search_log.evaluations, self._max_evaluations
    self._budget = Budget() if at_most is None else Budget(used + at_most)
    self.process = MoveProcess(
        problem, placement, self._schedule, budget=self._budget, rng=self.np_random,
        most_groups=self._num_groups)
    return self._observe(), self._info()

  def step(
      self, action: Any) -> Tuple[Observation, float, bool, bool, Dict[str, Any]]:
    """Simulates a move; a masked action moves nothing and ends the level.

    Args:
      action: m D + d moves the m-th observed group to device d.

    Returns:
      Observation, reward, whether the episode is over, whether it is truncated, information.
    """
    process, before_us = self.process, self.process.objective_us
    if self.action_masks()[action]:
      process.step(*divmod(int(action), self.problem.num_devices))  # m D + d -> (m, d)
    else:
      process.stop()
    # An episode that ends with its budget is truncated.
    truncated = process.over and self.problem.search_log.exhausted(self._budget)
    # 0 if the move was undone, because the objective is that of the best placement.
    reward = (before_us - process.objective_us) / self._scale_us
    return (self._observe(), float(reward), process.over and not truncated, truncated,
            self._info())

  def action_masks(self) -> np.ndarray:
    """Returns the moves that are still open; sb3-contrib's MaskablePPO calls a method of this name.

    Returns:
      [M D] bool.
    """
    found = np.zeros((self._num_groups, self.problem.num_devices), dtype=bool)
    # If there are fewer groups than rows, the remaining rows are masked.
    found[:len(self.process.some)] = self.process.open
    return found.ravel()

  def _observe(self) -> Observation:
    """Returns the observation; rows after the observed groups are 0."""
    some = self.process.some
    pair = np.zeros((self._num_groups, self.problem.num_devices, NUM_FEATURES), np.float32)
    pair[:len(some)] = self.process.pairs  # [M, D, F]
    placement = np.zeros(self._num_groups, np.int64)
    placement[:len(some)] = self.process.groups[some]  # [M]
    return {"pair": pair, "placement": placement,
            "action_mask": self.action_masks().astype(np.int8)}

  def _info(self) -> Dict[str, Any]:
    """Returns the step time in us of the best placement, and whether memory suffices."""
    return {"step_time_us": self.process.step_time_us, "fits": self.process.fits}


gymnasium.register(NAME, f"{__name__}:{PlacementEnv.__name__}")

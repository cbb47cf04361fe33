"""`placeto_tf/Placement-v0`: the decision process as a Gymnasium environment.

  import gymnasium

  environment = gymnasium.make(
      "placeto_tf.encoding.gym_environment:placeto_tf/Placement-v0", graph="zoo:rnnlm",
      cluster="k80:4", max_groups=32)

Placeto section 3.1: an episode starts from a placement and visits every group once, in topological
order; the action is a device for the group at hand. The reward is the fall of the objective (step
time plus the memory penalty) over that of the start, so an episode's return says how much faster it
ended: 0.3 is 30 % of the start's step time.

Observations, a `Dict`:

  placement    [G] MultiDiscrete  device of each group now
  current      Discrete           the group at hand
  visited      [G] MultiBinary    groups that this episode has placed
  start        [G] Box            start of each group's main op over the step time, in [0, 1]
  action_mask  [D] MultiBinary    devices where the group at hand may go

What no placement changes (times, bytes, edges, links) is in `environment.unwrapped.grouped`.

Legend: G groups, D devices.
"""

from __future__ import annotations

from typing import Any, Dict, Optional, Tuple

import gymnasium
import numpy as np
from gymnasium import spaces

from placeto_tf.clusters import Cluster
from placeto_tf.encoding.grouped_graph import GroupedGraph
from placeto_tf.errors import PlacementError
from placeto_tf.graphs import load_graph
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.search.starts import reference_placers

NAME = "placeto_tf/Placement-v0"
STARTS = ("best", "random")

Observation = Dict[str, Any]


class PlacementEnv(gymnasium.Env):
  """One graph on one cluster.

  Attributes:
    problem: counts evaluations (`problem.account.evaluations`) and keeps the best placement of all
      episodes (`problem.account.best_known`, [N] devices of ops).
    grouped: what no placement changes.
  """

  metadata: Dict[str, Any] = {"render_modes": []}

  def __init__(
      self, graph: Any, cluster: Any = "k80:4", *, grouping: str = "heavy_edge",
      max_groups: int = 32, start: str = "best", max_evaluations: Optional[int] = None,
      **options: Any):
    """Loads, estimates costs and groups.

    Args:
      graph: as for `load_graph`, such as a file or "zoo:inception_v3".
      cluster: a `Cluster`, or what `Cluster.parse` takes.
      grouping, max_groups: as for `place`.
      start: where episodes begin: "best", the best of one device, the expert and METIS, each group
        on the device of its main op, or "random", drawn in each; `reset(options={"start": [G]})`
        gives another.
      max_evaluations: episodes are truncated once so many placements were evaluated.
      **options: of `load_graph`, such as `batch_size`.

    Raises:
      PlacetoError: an argument is none of these.
    """
    if start not in STARTS:
      raise PlacementError(f"start is {start!r}; expected {' or '.join(STARTS)}")
    if max_evaluations is not None and max_evaluations < 1:
      raise PlacementError(f"max_evaluations is {max_evaluations}; expected at least 1")
    cluster = cluster if isinstance(cluster, Cluster) else Cluster.parse(cluster)
    self.problem = problem = PlacementProblem.build(
        load_graph(graph, **options), cluster, grouping=grouping, max_groups=max_groups)
    self.grouped = GroupedGraph.of(problem)
    self._start, self._max_evaluations = start, max_evaluations
    self._order = self.grouped.order
    g, d = problem.allowed.shape
    self.observation_space = spaces.Dict({
        "placement": spaces.MultiDiscrete(np.full(g, d)),
        "current": spaces.Discrete(g),
        "visited": spaces.MultiBinary(g),
        "start": spaces.Box(0.0, 1.0, (g,), np.float32),
        "action_mask": spaces.MultiBinary(d)})
    self.action_space = spaces.Discrete(d)
    self._given = self._best_reference()
    self._evaluate(self._given)
    self._scale_us = self._objective_us

  def reset(
      self, *, seed: Optional[int] = None, options: Optional[Dict[str, Any]] = None
  ) -> Tuple[Observation, Dict[str, Any]]:
    """Begins an episode. Args: options: {"start": [G] devices} begins there.

    Raises:
      PlacementError: a group may not be on its device.
    """
    super().reset(seed=seed)
    given = (options or {}).get("start")
    if given is not None:
      placement = np.asarray(given)
      if placement.shape != self._given.shape or not self._may(placement):
        raise PlacementError(
            f"the start is {given!r}; expected {len(self._given)} devices, each allowed")
    elif self._start == "random":
      draws = self.np_random.random(self.problem.allowed.shape)
      placement = np.where(self.problem.allowed, draws, -1.0).argmax(axis=1)
    else:
      placement = self._given
    self._visited = np.zeros(len(placement), dtype=np.int8)
    self._turn = 0
    self._evaluate(placement.astype(np.int32))
    return self._observe(), self._info()

  def step(
      self, action: Any) -> Tuple[Observation, float, bool, bool, Dict[str, Any]]:
    """Puts the group at hand on a device; one that it may not be on is no move."""
    group, before_us = self._order[self._turn], self._objective_us
    if self.problem.allowed[group, action] and action != self._placement[group]:
      placement = self._placement.copy()
      placement[group] = action
      self._evaluate(placement)
    self._visited[group] = 1
    self._turn += 1
    over = self._turn == len(self._order)
    truncated = not over and self._max_evaluations is not None and (
        self.problem.account.evaluations >= self._max_evaluations)
    reward = (before_us - self._objective_us) / self._scale_us
    return self._observe(), float(reward), over, truncated, self._info()

  def action_masks(self) -> np.ndarray:
    """[D] bool: where the group at hand may go; the name that sb3-contrib's MaskablePPO calls."""
    return self.problem.allowed[self._current].copy()

  @property
  def _current(self) -> int:
    return int(self._order[self._turn % len(self._order)])  # none is left after the last

  def _best_reference(self) -> np.ndarray:
    """[G] the baselines' best placement, in whole groups."""
    groups = np.arange(self.problem.num_groups)
    found = []
    for placer in reference_placers().values():
      placement = placer(self.problem)[self.grouped.main_op]
      allowed = self.problem.allowed[groups, placement]
      found.append(np.where(allowed, placement, self.problem.allowed.argmax(axis=1)))
    evaluation = self.problem.evaluate_ops(self.problem.grouping.expand(np.stack(found)))
    return found[evaluation.best()].astype(np.int32)

  def _may(self, placement: np.ndarray) -> bool:
    inside = (placement >= 0) & (placement < self.problem.num_devices)
    return bool(inside.all() and self.problem.allowed[np.arange(len(placement)), placement].all())

  def _evaluate(self, placement: np.ndarray) -> None:
    evaluation = self.problem.evaluate_ops(
        self.problem.grouping.expand(placement[None]), start_times=True)
    assert evaluation.start_us is not None
    self._placement = placement
    self._objective_us = float(evaluation.objective_us[0])
    self._step_time_us = float(evaluation.step_time_us[0])
    self._fits = bool(evaluation.fits[0])
    self._start_us = evaluation.start_us[0, self.grouped.main_op]

  def _observe(self) -> Observation:
    share = np.clip(self._start_us / max(self._step_time_us, 1e-9), 0, 1)
    return {
        "placement": self._placement.astype(np.int64),
        "current": np.int64(self._current),
        "visited": self._visited.copy(),
        "start": share.astype(np.float32),
        "action_mask": self.action_masks().astype(np.int8)}

  def _info(self) -> Dict[str, Any]:
    return {"step_time_us": self._step_time_us, "fits": self._fits}


gymnasium.register(NAME, f"{__name__}:{PlacementEnv.__name__}")

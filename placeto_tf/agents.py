"""The door to Placeto's parts: GraphTensor, environment, policy, and training.

  environment = placeto.load_environment("zoo:rnnlm", "k80:4", max_evaluations=100)
  placement = placeto.run_policy(environment, placeto.load_policy())

docs/policy_step_by_step.md walks through all of it.
"""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Union

import numpy as np

from placeto_tf.clusters import Cluster
from placeto_tf.encoding import graph_tensor as graph_tensor_lib  # checks the packages first
from placeto_tf.encoding.grouped_graph import GroupedGraph
from placeto_tf.encoding.placed_groups import PlacedGroups
from placeto_tf.environments import problems as problems_lib
from placeto_tf.environments.move_environment import ARM, ARMS, PAIR, MoveEnvironment
from placeto_tf.environments.schedule import Schedule
from placeto_tf.environments.timing import SIMULATED, Timing, timed
from placeto_tf.errors import PlacetoError, option
from placeto_tf.graphs import ComputationGraph, load_graph
from placeto_tf.placements import Placement
from placeto_tf.policies import trainable
from placeto_tf.policies.placeto.agent import greedy_policy
from placeto_tf.policies.placeto.placers import trained
from placeto_tf.policies.saved_policy import load_saved_policy
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.training.trainable import Trainable

from tf_agents.policies import py_policy, py_tf_eager_policy, tf_policy  # isort: skip
from tf_agents.drivers import py_driver  # isort: skip

Policy = Union[py_policy.PyPolicy, tf_policy.TFPolicy]


def graph_tensor(
    graph: Any, cluster: Union[Cluster, str], placement: Optional[Placement] = None, *,
    max_groups: int = 128, **options: Any) -> graph_tensor_lib.ReadableGraphTensor:
  """Returns the GraphTensor of a placement, as policies read it; `print` shows its features.

  Args:
    graph: as for `load_graph`, such as a tf.Graph.
    cluster: a `Cluster`, or a text for `Cluster.parse`.
    placement: of its ops; by default all ops are on the first device that they may use.
    max_groups: the most groups of ops.
    **options: of `load_graph`, such as `batch_size`.

  Returns:
    A tfgnn.GraphTensor of `encoding/schema.pbtxt`, with the features of the simulated placement.

  Raises:
    PlacetoError: an argument is wrong, or the packages for training are missing.
  """
  problem = _problem(graph, cluster, max_groups, options)
  indices = (problem.allowed_ops.argmax(axis=1) if placement is None else
             placement.indices(problem.graph, problem.cluster))
  placed = PlacedGroups(problem, indices, problem.num_groups)
  grouped, simulated = GroupedGraph.of(placed.level), placed.problem.simulator.simulate(
      placed.placement)
  return graph_tensor_lib.encode(
      grouped, placed.groups, step_time_us=simulated.step_time_us,
      start_us=simulated.start_us[grouped.main_op],
      pairs=placed.state.features(np.arange(grouped.num_groups, dtype=np.int32)))


def load_environment(
    graphs: Any, cluster: Union[Cluster, str], timing: Timing = SIMULATED, *,
    workers: Sequence[str] = (), device_map: Optional[Mapping[str, str]] = None,
    max_evaluations: Optional[int] = None, max_groups: int = 128, seed: int = 0,
    schedule: Optional[Schedule] = None, moves: int = 1, arms: int = ARMS, dataflow: bool = False,
    **options: Any) -> MoveEnvironment:
  """Makes an environment of tf-agents in which a policy improves placements step by step.

  An episode begins with the best of one device, the human-expert baseline and METIS.

  Args:
    graphs: one graph as for `load_graph`, such as a tf.Graph or "zoo:rnnlm", or a list of them.
    cluster: a `Cluster`, or a text for `Cluster.parse`.
    timing: step times that decide and reward: "simulated"; "session", which times each placement
      once by real steps, as `measure` does; or a function from a `Placement` to microseconds.
    workers, device_map: for sessions, as for `place`.
    max_evaluations: the most placements that an episode evaluates.
    max_groups: the most groups of ops.
    seed: of all samples.
    schedule: of the process; by default the one that `place` searches with.
    moves: number of moves that are simulated side by side, for training.
    arms: the most moves of an observation; if there are more, a random sample of groups moves.
    dataflow: whether observations have the dataflow between groups, for networks with messages.
    **options: of `load_graph`, such as `batch_size`.

  Returns:
    A PyEnvironment; `placement` is the best so far, and the search logs of `problems` count
    evaluations.

  Raises:
    PlacetoError: an argument is wrong, or the packages for training are missing.
  """
  several: List[Any] = list(graphs) if isinstance(graphs, (list, tuple)) else [graphs]
  problems = []
  for graph in several:
    problem = timed(_problem(graph, cluster, max_groups, options), timing, workers=workers,
                    device_map=device_map, seed=seed)
    problems.append(problems_lib.with_starts(problem))
  return MoveEnvironment(problems, schedule, arms=arms, moves=moves, dataflow=dataflow,
                         max_evaluations=max_evaluations, seed=seed)


def load_policy(weights: Optional[str] = None, *, arms: int = ARMS) -> py_policy.PyPolicy:
  """Loads a policy of tf-agents that chooses among the moves of a `load_environment`.

  Args:
    weights: the directory of a run of `train`, of its weights, or of a SavedModel that tf-agents'
      PolicySaver wrote; by default the weights that ship.
    arms: of the environment.

  Returns:
    The policy, which takes the move with the best score; tf-agents' PyDriver takes it, too.

  Raises:
    PlacetoError: the directory holds no policy, or the packages for training are missing.
  """
  if weights is not None and os.path.exists(os.path.join(weights, "saved_model.pb")):
    return load_saved_policy(weights)
  return py_tf_eager_policy.PyTFEagerPolicy(
      greedy_policy(trained(weights), arms), use_tf_function=True)


def run_policy(environment: MoveEnvironment, policy: Policy) -> Placement:
  """Plays an episode by a policy, with tf-agents' PyDriver.

  Args:
    environment: of `load_environment`, with one move a step.
    policy: of `load_policy`, or any policy of tf-agents for this environment.

  Returns:
    The best placement so far.

  Raises:
    PlacetoError: the policy is for another number of arms.
  """
  if isinstance(policy, tf_policy.TFPolicy):
    policy = py_tf_eager_policy.PyTFEagerPolicy(policy, use_tf_function=True)
  arms = policy.time_step_spec.observation[ARM][PAIR].shape[0]
  if arms != environment.arms:
    raise PlacetoError(
        f"the policy chooses among {arms:,} arms, the environment has {environment.arms:,}; make "
        f"the environment with load_environment(..., arms={arms})")
  py_driver.PyDriver(
      environment, policy, [], max_episodes=1, end_episode_on_boundary=False,
  ).run(environment.reset())
  return environment.placement


def place_by_policy(
    problem: PlacementProblem, budget: Budget, seed: int = 0, *, policy: Policy, **options: Any
) -> np.ndarray:
  """Improves a problem's best placement by a policy, as the function of a `Method`.

  Args:
    problem, budget, seed: as for other methods.
    policy: of tf-agents.
    **options: of `MoveEnvironment`, such as `arms` and `dataflow`.

  Returns:
    The best placement found, [N].
  """
  start = problem.project(problem.search_log.best_known)
  started = problems_lib.StartedProblem("", problem, start[None])
  run_policy(MoveEnvironment([started], budget=budget, seed=seed, **options), policy)
  return problem.search_log.best_known


def train(
    graphs: Sequence[str], root_dir: str, *, policy: str = "placeto", preset: Optional[str] = None,
    warm_start: Optional[str] = None, settings: Sequence[str] = (), ray: Optional[str] = None,
    actors: Optional[int] = None, progress: Callable[[int, Dict[str, float]], None] = (
        lambda *_: None), **fields: Any) -> Dict[str, float]:
  """Trains a policy as `scripts/train.py` does, and resumes a run that stopped.

  Args:
    graphs: specs of graphs, as `load_graph` takes them.
    root_dir: directory of the run.
    policy, preset: what is trained, see `scripts/train.py`.
    warm_start: "pretrained", or the directory of the initial weights of a new run.
    settings: field=value each, as for --set.
    ray, actors: see `scripts/train.py`.
    progress: called with the iteration and its figures, and before the first with 0 and
      {"problems": the number of problems made so far}.
    **fields: further fields of the configuration, such as `clusters`, `iterations` and `timing`.

  Returns:
    The last figures of the run.

  Raises:
    PlacetoError: an argument is wrong, or the packages for training are missing.
  """
  record = find_trainable(policy, preset)
  config = record.configure({"graphs": tuple(graphs), **fields}, settings)
  if warm_start == "pretrained":
    warm_start = record.pretrained()
    if warm_start is None:
      raise PlacetoError(f"this version ships no trained weights; give {option('warm_start')}")
  return record.train(
      config, root_dir, warm_start=warm_start, progress=progress, ray=ray, actors=actors)


def find_trainable(policy: str, preset: Optional[str] = None) -> Trainable:
  """Returns the record of a policy that can be trained.

  Args:
    policy, preset: see `train`.

  Returns:
    The record.

  Raises:
    PlacetoError: there is no such policy or preset.
  """
  known = trainable()
  if policy not in known:
    raise PlacetoError(
        f"policy {policy!r} is not known; expected one of {', '.join(known)}, or "
        + option("import", in_python="a policy of your own, with policies.use(...)"))
  return known[policy]().preset(preset)


def _problem(
    graph: Any, cluster: Union[Cluster, str], max_groups: int, options: Mapping[str, Any]
) -> PlacementProblem:
  """Returns the problem of a graph on a cluster."""
  return problems_lib.make_problem(
      graph if isinstance(graph, ComputationGraph) else load_graph(graph, **options),
      cluster if isinstance(cluster, Cluster) else Cluster.parse(cluster), max_groups=max_groups)

"""Plays episodes with tf-agents' `PyDriver`, which collects experience for policies of many steps.

`BatchEnvironment` is the base of all environments. A policy is a function from an observation to an
action.

Samples come from NumPy generators, so TensorFlow's global seed has no effect and is not changed. A
run that is resumed gets the same samples as a run that is not interrupted.

Dimensions: B episodes side by side, T steps, K groups placed in one step, D devices.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

from placeto_tf.encoding import schema  # noqa: F401  its check comes before tf-agents

import tensorflow as tf  # isort: skip
from tf_agents.drivers import py_driver  # isort: skip
from tf_agents.environments import py_environment  # isort: skip
from tf_agents.networks import network as network_lib  # isort: skip
from tf_agents.policies import py_policy  # isort: skip
from tf_agents.trajectories import policy_step, trajectory  # isort: skip

# Observation, as arrays -> logits [B, K, D]
Logits = Callable[[Dict[str, np.ndarray]], np.ndarray]
# Observation, as arrays -> action, and information on the action for the learner
Act = Callable[[Any], Tuple[Any, Any]]


def drawing(logits: Logits, rng: Optional[np.random.Generator]) -> Act:
  """Returns a function that samples actions from logits.

  Args:
    logits: observations -> logits [B, K, D].
    rng: samples by the Gumbel-max trick; None takes the likeliest device.

  Returns:
    Observations -> (actions [B, K] int32, no information).
  """

  def act(observation):
    scores = logits(observation)
    if rng is not None:
      # Gumbel-max: argmax(logits + Gumbel noise) is a sample of softmax(logits).
      scores = scores + rng.gumbel(size=scores.shape)
    # [B, K, D] -> [B, K].
    return scores.argmax(-1).astype(np.int32), ()

  return act


class BatchEnvironment(py_environment.PyEnvironment):
  """Base class of tf-agents' environments with several episodes side by side, or with one."""

  def __init__(self, episodes: Optional[int], observation_spec: Any, action_spec: Any):
    """Declares the specs.

    Args:
      episodes: B; None for a single episode without a batch dimension.
      observation_spec, action_spec: of one episode.
    """
    super().__init__(handle_auto_reset=True)
    self._episodes = episodes
    self._specs = observation_spec, action_spec

  @property
  def batched(self) -> bool:
    """Returns whether time steps and actions have a batch dimension."""
    return self._episodes is not None

  @property
  def batch_size(self) -> Any:
    """Returns B; None without a batch dimension."""
    return self._episodes

  def observation_spec(self):
    """Returns the spec of one episode's observation."""
    return self._specs[0]

  def action_spec(self):
    """Returns the spec of one episode's action."""
    return self._specs[1]


class ActingPolicy(py_policy.PyPolicy):
  """A function as a policy of an environment."""

  def __init__(self, environment: py_environment.PyEnvironment, act: Act):
    super().__init__(environment.time_step_spec(), environment.action_spec())
    self._act = act

  def _action(self, time_step, policy_state, seed=None):
    action, info = self._act(time_step.observation)
    return policy_step.PolicyStep(action, policy_state, info)


def steps_of(
    environment: py_environment.PyEnvironment, act: Act,
    observers: Sequence[Callable[[trajectory.Trajectory], Any]] = ()
) -> List[trajectory.Trajectory]:
  """Plays one episode in each row of a batched environment; all episodes end together.

  Args:
    environment: with B episodes side by side.
    act: observation -> action and information, see `drawing`.
    observers: called with each step's trajectory.

  Returns:
    The trajectories of the T steps, with arrays [B, ...].
  """
  steps: List[trajectory.Trajectory] = []
  # Rows end together, so `batch_size` episodes are one episode of each row.
  py_driver.PyDriver(
      environment, ActingPolicy(environment, act), [steps.append, *observers],
      max_episodes=environment.batch_size, end_episode_on_boundary=False).run(environment.reset())
  return steps


def play(
    environment: py_environment.PyEnvironment, act: Act,
    observers: Sequence[Callable[[trajectory.Trajectory], Any]] = ()) -> trajectory.Trajectory:
  """Plays one episode in each row of a batched environment; all episodes end together.

  Args:
    environment, act, observers: as for `steps_of`.

  Returns:
    The trajectory, with arrays [B, T, ...].
  """
  # T trajectories of [B, ...] -> one of [B, T, ...].
  return tf.nest.map_structure(
      lambda *values: np.stack(values, axis=1), *steps_of(environment, act, observers))


def acting(network: network_lib.DistributionNetwork) -> Logits:
  """Returns the logits of a network as a function of arrays."""

  @tf.function(autograph=False)
  def act(observation):
    distribution, _ = network(observation)
    return distribution.logits

  return lambda observation: act(
      {name: tf.constant(value) for name, value in observation.items()}).numpy()

"""Measures how fast the device pointer is trained, and prints one line per figure.

  scripts/with_env python scripts/benchmarks/benchmark_training.py

A step is one visit of one group in one episode, its simulation included. The figures are the
best of some repetitions, because other work can only slow a machine down.
"""

from __future__ import annotations

import os
import time

from absl import flags

from placeto_tf.programs import entry_point

FLAGS = flags.FLAGS

flags.DEFINE_string("graph", "family:cifar10[20]", "The graph that is trained on.")
flags.DEFINE_string("cluster", "k80:4", "Its cluster.")
flags.DEFINE_integer("max_groups", 100, "Groups at most.", lower_bound=2)
flags.DEFINE_integer("rows", 32, "Episodes side by side.", lower_bound=1)
flags.DEFINE_integer("steps", 32, "Steps an episode.", lower_bound=1)
flags.DEFINE_integer("updates", 20, "Updates a repetition.", lower_bound=1)
flags.DEFINE_integer("repeats", 5, "Repetitions, of which the best counts.", lower_bound=1)


def main() -> None:
  """Measures."""
  entry_point.import_tensorflow_quietly()
  import numpy as np
  from tf_agents.utils import common

  from placeto_tf.environments.moves_environment import MovesConfig, MovesEnvironment
  from placeto_tf.policies.device_pointer import agent as agent_lib
  from placeto_tf.policies.device_pointer.scorer import PREFERENCE, pretrained
  from placeto_tf.training import pointer_problems

  problems = pointer_problems.make_problems(
      [FLAGS.graph], [FLAGS.cluster], max_groups=[FLAGS.max_groups])
  problem, rng = problems[0].problem, np.random.default_rng(0)
  environment = MovesEnvironment(
      problems, problem.num_devices, config=MovesConfig(rows=FLAGS.rows, steps=FLAGS.steps))
  agent = agent_lib.make_agent(problem.num_devices)
  # The more is learned, the more groups stay where they are, and such steps simulate nothing. So
  # that both figures are of the same work, what is learned is not collected with.
  weights = pretrained(PREFERENCE)
  agent.actor_net.set_weights_for_scoring(weights)
  learn = common.function(agent.train)

  def collect():
    return agent_lib.collect(environment, weights, rng)[0]

  def per_second(once) -> float:
    once()  # not counted: compiles and traces
    seconds = []
    for _ in range(FLAGS.repeats):
      started = time.perf_counter()
      for _ in range(FLAGS.updates):
        once()
      seconds.append(time.perf_counter() - started)
    return FLAGS.updates * FLAGS.rows * FLAGS.steps / min(seconds)

  print(f"{FLAGS.graph} on {FLAGS.cluster}: {problem.graph.num_ops} ops in {problem.num_groups} "
        f"groups, {FLAGS.rows} episodes side by side, {os.cpu_count()} cores")
  print(f"collecting: {per_second(collect):,.0f} steps/s", flush=True)
  print(f"with learning: {per_second(lambda: learn(collect())):,.0f} steps/s", flush=True)


if __name__ == "__main__":
  entry_point.run_program(main)

"""Trains an agent of Stable-Baselines3 to place a graph; some minutes.

  pip install 'placeto_tf[gym]' stable-baselines3
  python examples/train_with_stable_baselines3.py
"""

import dataclasses

import gymnasium
import numpy as np
import torch._dynamo  # loads triton, which crashes where TensorFlow is loaded before it
from stable_baselines3 import PPO

from placeto_tf.environments.gym_environment import ROUNDS

ENVIRONMENT = "placeto_tf.environments.gym_environment:placeto_tf/Placement-v0"


def main(steps: int = 40_000) -> None:
  """Trains from random placements, and prints what the best placement of the training takes."""
  torch.set_num_threads(1)  # the network is small
  environment = gymnasium.make(
      ENVIRONMENT, graph="family:nmt[40:41]", cluster="k80:2+p100:2", max_groups=24, start="random",
      schedule=dataclasses.replace(ROUNDS, rounds=(24 * 7,)))
  problem = environment.unwrapped.problem
  reference_us = problem.search_log.best_objective_us  # of one device, the expert and METIS
  agent = PPO("MultiInputPolicy", environment, n_steps=24 * 20, batch_size=120, gamma=0.0,
              ent_coef=0.003, seed=0, device="cpu")

  def greedy_us() -> float:
    """The mean step time at the end of greedy episodes from random placements."""
    ends = []
    for seed in range(10):
      observation, info = environment.reset(seed=seed)
      over = False
      while not over:
        action, _ = agent.predict(observation, deterministic=True)
        observation, _, over, _, info = environment.step(int(action))
      ends.append(info["step_time_us"])
    return float(np.mean(ends))

  before_us = greedy_us()
  agent.learn(steps)
  after_us = greedy_us()
  print(f"Best of one device, the expert and METIS: {reference_us / 1000:.1f} ms")
  print(f"Greedy episodes from random placements: {before_us / 1000:.1f} ms before training, "
        f"{after_us / 1000:.1f} ms after {steps} steps")
  print(f"Best placement seen: {problem.search_log.best_objective_us / 1000:.1f} ms "
        f"({problem.search_log.evaluations} evaluated)")


if __name__ == "__main__":
  main()

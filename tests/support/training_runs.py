"""Small training runs of the policies for many graphs, on problems of their own."""

import dataclasses

import numpy as np

from placeto_tf.environments.problems import StartedProblem, with_starts
from placeto_tf.environments.schedule import Schedule
from placeto_tf.environments.visit_environment import VisitConfig
from placeto_tf.policies.baselines.gdp import PpoConfig
from placeto_tf.policies.baselines.gdp_inputs import node_problem
from placeto_tf.policies.baselines.gdp_network import GdpConfig
from placeto_tf.policies.baselines.gdp_training import GdpTraining, GdpTrainingConfig
from placeto_tf.policies.placeto.published.config import PublishedConfig
from placeto_tf.policies.placeto.published.network import NetworkConfig
from placeto_tf.policies.placeto.published.training import (
  PublishedTraining,
  PublishedTrainingConfig,
)
from placeto_tf.policies.placeto.training import PlacetoTraining, PlacetoTrainingConfig
from placeto_tf.training.trainer import Trainer
from random_problem import random_problem

PLACETO = PlacetoTrainingConfig(
    graphs=("a", "b"), clusters=("k80:3",), iterations=5, checkpoint_every=2, watch_every=3,
    width=8, steps=3, batch=32, arms=64, capacity=1000, moves=4,
    schedule=Schedule(rounds=(40,), levels=(0.5, 1.0)))
PUBLISHED = PublishedTrainingConfig(
    graphs=("a", "b"), max_groups=5, iterations=6, checkpoint_every=2, watch_every=3,
    placeto=PublishedConfig(
        environment=VisitConfig(num_episodes=2, start="best", order="random"),
        network=NetworkConfig(rounds=1, width=3)))
# Takes less time than the paper's network, where the network does not matter.
AGGREGATOR = dataclasses.replace(PUBLISHED, iterations=4, placeto=dataclasses.replace(
    PUBLISHED.placeto, network=NetworkConfig(embedding="simple_aggregator", width=3)))
GDP = GdpTrainingConfig(
    graphs=("a", "b"), iterations=4, checkpoint_every=2, watch_every=3,
    network=GdpConfig(max_devices=5, width=8, rounds=1, layers=1, heads=2, segment=16),
    training=PpoConfig(batch_size=4, epochs=1))


def _run(kind, config, root_dir, problems, options):
  """A run that watches its first problem, too."""
  return Trainer(kind, config, str(root_dir), problems=problems, held_out=problems[:1], **options)


def placeto(root_dir, config=PLACETO, **options):
  return _run(PlacetoTraining, config, root_dir, [
      with_starts(random_problem(num_ops=80, num_groups=16, devices=text, seed=i))
      for i, text in enumerate(("k80:3", "p100:2+k80:2"))], options)


def published(root_dir, config=PUBLISHED, **options):
  problems = []
  for groups in (3, 4):
    problem = random_problem(num_ops=20, num_groups=groups, devices="k80:2", seed=groups)
    start = problem.allowed.argmax(axis=1).astype(np.int32)
    problems.append(StartedProblem(f"random[{groups}]", problem, start[None]))
  return _run(PublishedTraining, config, root_dir, problems, options)


def gdp(root_dir, config=GDP, **options):
  return _run(GdpTraining, config, root_dir, [
      node_problem(random_problem(num_ops=30, devices=text, seed=i))
      for i, text in enumerate(("k80:3", "k80:2"))], options)


def compiled_scores(weights, observation):
  """Scores of the arms of a `MoveEnvironment` as `MoveProcess.run` has them."""
  arms = observation["per_arm"]
  stops = arms["group"] == -1
  found = weights.scores(arms["pair"]) + arms["preference"]
  return np.where(stops, np.maximum(arms["preference"], 0.5 * found[~stops].max()), found)


def bits(run):
  return [variable.numpy().tobytes() for variable in run.learner.variables]

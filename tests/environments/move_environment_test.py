import numpy as np
import pytest

from placeto_tf.encoding.grouped_graph import GroupedGraph
from placeto_tf.environments.move_environment import MoveEnvironment
from placeto_tf.environments.problems import with_starts
from placeto_tf.environments.schedule import Schedule
from placeto_tf.errors import PlacementError
from random_problem import random_problem


def test_observations_have_the_dataflow_between_the_observed_groups():
  problem = random_problem(num_ops=80, num_groups=16, devices="k80:3")
  environment = MoveEnvironment(
      [with_starts(problem)], Schedule(levels=(1.0,), several=0), arms=128, dataflow=True)
  observation = environment.reset().observation
  environment.observation_spec()["global"].check_array(observation["global"])
  process = environment.process
  flow = GroupedGraph.of(process.level).flow_ends
  assert len(process.some) == process.level.num_groups > 8  # all groups, in random order
  edges = observation["global"][observation["global"][:, 0] < 128]
  assert sorted(process.some[edges].tolist()) == sorted(flow.tolist())
  assert (observation["global"][len(edges):] == 128).all()
  # All option edges are there, open or closed.
  arms = observation["per_arm"]
  count = int(process.tables.allowed.sum())
  ends = process.some[arms["group"][:count]], arms["device"][:count]
  assert sorted(zip(*ends)) == sorted(zip(*np.nonzero(process.tables.allowed)))
  for wrong in (5000, -1, 0.5):  # and an arm of padding changes nothing
    with pytest.raises(PlacementError, match=f"action is {wrong}; .*from 0 to 127"):
      environment.step(wrong)
  assert environment.step(127).reward == 0

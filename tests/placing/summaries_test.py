"""TensorBoard events of a placing run."""

import types

import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorflow.core.framework import graph_pb2

import graph_files
from placeto_tf.clusters import Cluster
from placeto_tf.graphs import load_graph
from placeto_tf.placing.config import PlacingConfig
from placeto_tf.placing.run import place_with
from placeto_tf.placing.summaries import Events
from placeto_tf.problem.search_log import Improvement, SearchLog


def _reload(directory):
  events = EventAccumulator(str(directory))
  events.Reload()
  return events


@pytest.fixture(scope="module", name="written")
def written_fixture(tmp_path_factory):
  """(result, events) of a search."""
  directory = tmp_path_factory.mktemp("events")
  config = PlacingConfig(method="annealing", max_evaluations=90, max_groups=8,
                         pins=(("branch0/layer0/matmul", "/GPU:1"),))
  result = place_with(
      load_graph(graph_files.meta_graph_def()), Cluster.parse("k80:2"), config,
      root_dir=str(directory))
  return result, _reload(directory / "placing")


def test_step_times_are_written_in_ms(written):
  result, events = written
  scalars = events.Scalars("StepTime/best_ms")
  assert scalars[0].step == 1
  assert [(each.step, pytest.approx(each.value * 1e3)) for each in scalars] == [
      (evaluations, us) for evaluations, _, us in result.history] + [(90, result.step_time_us)]


def test_the_curve_is_written_while_the_search_runs(tmp_path):
  log, seen = SearchLog(), []
  with Events(str(tmp_path)) as events:
    for found in (Improvement(1, 0.0, 9e3, 0.0), Improvement(5, 0.1, 4e3, 0.0)):
      log.improvements.append(found)
      events.record(types.SimpleNamespace(search_log=log), "annealing")
      events._writer.flush()
      seen.append([each.value for each in _reload(tmp_path / "placing").Scalars(
          "StepTime/best_ms")])
  assert seen == [[9.0], [9.0, 4.0]]


def test_the_step_is_a_picture(written):
  _, events = written
  assert set(events.Tags()["images"]) == {"Timeline/best"}
  image = events.Images("Timeline/best")[0]
  assert tf.io.decode_png(image.encoded_image_string).shape[:2] == (image.height, image.width)


def test_the_graph_is_the_placed_one(written):
  result, events = written
  graph_def = graph_pb2.GraphDef.FromString(events.Graph().SerializeToString())
  devices = {node.name: node.device for node in graph_def.node}
  for name, device in result.placement.items():
    assert devices[name].endswith(device.rpartition("/")[2])

import json

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2

from placeto_tf.evaluation.summaries import write_summaries

ROW = {
    "graph": "a", "cluster": "k80:2", "method": "auto", "seed": 3, "step_time_us": 2000.0,
    "fits": True, "start_us": None, "evaluations": 9, "seconds": 1.5, "lower_bound_us": 1000.0,
    "peak_memory_bytes": 2.0**31, "placement": "placements/a__auto.json"}


def _written(tmp_path):
  (tmp_path / "histories").mkdir(exist_ok=True)
  (tmp_path / "histories" / "a__auto.json").write_text(
      json.dumps([[1, 0.5, 5000.0], [7, 1.0, 2000.0]]))
  events = EventAccumulator(write_summaries(ROW, str(tmp_path)))
  events.Reload()
  return events


def test_the_best_so_far_stands_at_its_evaluations(tmp_path):
  scalars = _written(tmp_path).Scalars("StepTime/best_ms")
  assert [(event.step, event.value) for event in scalars] == [(1, 5.0), (7, 2.0)]


def test_results_and_their_settings_are_there_for_the_hparams_tab(tmp_path):
  events = _written(tmp_path)
  assert events.Scalars("Result/over_bound")[0].value == 2.0
  assert events.Scalars("Result/peak_memory_gb")[0].value == 2.0
  content = events.PluginTagToContent("hparams")
  started = plugin_data_pb2.HParamsPluginData.FromString(
      content["_hparams_/session_start_info"]).session_start_info
  assert started.hparams["method"].string_value == "auto"
  assert started.hparams["seed"].number_value == 3
  assert "_hparams_/session_end_info" in content


def test_a_run_that_was_killed_leaves_nothing_of_its_summaries(tmp_path):
  _written(tmp_path)
  assert len(_written(tmp_path).Scalars("StepTime/best_ms")) == 2

"""What is not known about a step is looked at, or said in the first line of its result."""

import tensorflow as tf

import placeto_tf as placeto
from placeto_tf.costs import look
from placeto_tf.placing import tables


def _until(limit):
  with tf.Graph().as_default() as tf_graph:
    x = tf.compat.v1.placeholder(tf.float32, [6, 4], name="x")
    tf.identity(tf.while_loop(
        lambda a: tf.reduce_sum(a) < limit, lambda a: tf.tanh(a) + a + 1.0, [x]), name="y")
  return tf_graph


def _place(tf_graph, mode):
  return placeto.place(tf_graph, "k80:2", "single", fetches=["y:0"], look=mode)


def test_a_step_is_looked_at_and_takes_what_it_took(tmp_path, monkeypatch):
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
  unseen, seen = (_place(_until(1000.0), mode) for mode in ("no", "auto"))
  assert not seen.costs.unknown
  assert "was run once on this machine" in seen.costs.notes[0]
  assert "at least" not in repr(seen) and "at least" not in tables.table(seen)
  assert seen.step_time_us > 1.5 * unseen.step_time_us  # more than 10 rounds
  # What was seen is kept: simulating the result again gives the promised time, and runs nothing.
  assert placeto.simulate(seen.graph, "k80:2", seen.placement).step_time_us == seen.step_time_us


def test_what_stays_unknown_is_said_first(tmp_path, monkeypatch):
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
  result = _place(_until(1000.0), "no")
  first = tables.table(result).splitlines()[0]
  assert first.startswith("At least ") and "the rounds of 1 loop are unknown" in first
  assert "look='yes'" in first and "PlacingResult(At least " in repr(result)
  monkeypatch.setitem(look._LIMIT_S, "yes", 2.0)
  endless = tables.table(_place(_until(1e9), "yes"))
  assert "measured costs (the step cannot be run here)" in endless and "2 s of CPU time" in endless

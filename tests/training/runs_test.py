"""What every training run shares, on a run that does nearly nothing."""

import pathlib

import pytest
import tensorflow as tf

from placeto_tf.training import runs
from placeto_tf.training.run_config import RunConfig

_CONFIG = RunConfig(("zoo:rnnlm",), iterations=3, checkpoint_every=1)


class _Counting(runs.TrainingRun):
  """Counts its updates."""

  def __init__(self, root_dir):
    super().__init__(_CONFIG, root_dir)
    self._count = tf.Variable(0.0)
    self._resume(count=tf.train.Checkpoint(count=self._count))

  def _learn(self, collected):
    return self._count.assign_add(1.0)

  def _finite(self, learned):
    return True

  def _figures(self, collected, learned):
    return {"count": float(self._count.numpy())}

  def _variables(self):
    return [self._count]

  def _state(self):
    return {}

  def _load_state(self, state):
    assert not state

  def _export(self):
    pathlib.Path(self.root_dir, "exported").write_text(str(self._count.numpy()))


def _export_fails_at_the_end(run):
  if run.iteration == 3:
    raise ZeroDivisionError
  _EXPORT(run)


_EXPORT = _Counting._export


@pytest.mark.parametrize("cut_off", [0, 2, "before done.json", "before the last export"])
def test_a_run_that_is_cut_off_ends_as_one_that_was_not(tmp_path, monkeypatch, cut_off):
  root_dir = str(tmp_path / "run")
  if isinstance(cut_off, int):
    _Counting(root_dir).run(until=cut_off)
  else:
    with monkeypatch.context() as cut, pytest.raises(ZeroDivisionError):
      if cut_off == "before done.json":
        cut.setattr(runs, "finish", lambda *_, **__: 1 / 0)
      else:
        cut.setattr(_Counting, "_export", _export_fails_at_the_end)
      _Counting(root_dir).run()
  figures = _Counting(root_dir).run()
  assert figures["count"] == 3.0 and figures["skipped"] == 0.0
  done = runs.read_done(root_dir)
  assert done["iterations"] == 3 and done["figures"] == figures
  assert (tmp_path / "run" / "exported").read_text() == "3.0"

"""What every training run shares, on a run that does nearly nothing."""

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
    pass


@pytest.mark.parametrize("until", [0, 2, 3])
def test_a_run_that_is_cut_off_ends_with_the_figures_of_one_that_was_not(
    tmp_path, monkeypatch, until):
  root_dir = str(tmp_path / "run")
  if until < 3:
    _Counting(root_dir).run(until=until)
  else:  # after the last checkpoint, before done.json
    with monkeypatch.context() as cut:
      cut.setattr(runs, "finish", lambda *_, **__: 1 / 0)
      with pytest.raises(ZeroDivisionError):
        _Counting(root_dir).run()
  figures = _Counting(root_dir).run()
  assert figures["count"] == 3.0 and figures["skipped"] == 0.0
  done = runs.read_done(root_dir)
  assert done["iterations"] == 3 and done["figures"] == figures

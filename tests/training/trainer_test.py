"""What every training run shares, on a run that does nearly nothing."""

import dataclasses
import pathlib

import pytest
import tensorflow as tf

from placeto_tf.errors import PlacetoError
from placeto_tf.training import runs
from placeto_tf.training.learner import Learner
from placeto_tf.training.trainable import RunConfig
from placeto_tf.training.trainer import Trainer, train

_CONFIG = RunConfig(("zoo:rnnlm",), iterations=3, checkpoint_every=1)


class _Counting(Learner):
  """Counts its updates."""


  def __init__(self, config, root_dir):
    super().__init__(config, root_dir, problems=["the only one"])
    self._count = tf.Variable(0.0)
    self.tracked = {"count": tf.train.Checkpoint(count=self._count)}
    self.collector = lambda problems: lambda weights, spec: weights + spec

  def specs(self, iteration):
    return [iteration]

  def portable(self, num_threads):
    return self.problems

  @property
  def weights(self):
    return float(self._count.numpy())

  @property
  def variables(self):
    return [self._count]

  def learn(self, experiences, iteration):
    assert experiences == [self.weights + iteration]
    return {"count": float(self._count.assign_add(1.0).numpy()), "steps": 1}

  def export(self, directory, **notes):
    pathlib.Path(self.root_dir, "exported").write_text(str(self._count.numpy()))


def _export_fails_at_the_end(learner, directory, **notes):
  if notes["iteration"] == 3:
    raise ZeroDivisionError
  _EXPORT(learner, directory, **notes)


_EXPORT = _Counting.export


def _run(root_dir):
  return Trainer(_Counting, _CONFIG, root_dir)


@pytest.mark.parametrize("cut_off", [0, 2, "before done.json", "before the last export"])
def test_a_run_that_is_cut_off_ends_as_one_that_was_not(tmp_path, monkeypatch, cut_off):
  root_dir = str(tmp_path / "run")
  if isinstance(cut_off, int):
    _run(root_dir).run(until=cut_off)
  else:
    with monkeypatch.context() as cut, pytest.raises(ZeroDivisionError):
      if cut_off == "before done.json":
        cut.setattr(runs, "finish", lambda *_, **__: 1 / 0)
      else:
        cut.setattr(_Counting, "export", _export_fails_at_the_end)
      _run(root_dir).run()
  figures = _run(root_dir).run()
  assert figures["count"] == 3.0 and figures["skipped"] == 0.0
  done = runs.read_done(root_dir)
  assert done["iterations"] == 3 and done["figures"] == figures
  assert (tmp_path / "run" / "exported").read_text() == "3.0"


class _Failing(_Counting):
  """From the third iteration on, an update ruins what is trained."""

  def learn(self, experiences, iteration):
    if iteration < 3:
      return super().learn(experiences, iteration)
    return {"count": float(self._count.assign(float("nan")).numpy())}


def test_updates_that_give_nan_are_undone_counted_and_end_the_run_after_ten(tmp_path):
  run = Trainer(_Failing, dataclasses.replace(_CONFIG, iterations=30), str(tmp_path))
  with pytest.raises(PlacetoError, match="10 updates in a row gave NaN"):
    run.run()
  assert run.skipped == 10 and run.iteration == 12
  assert run.learner.weights == 2.0


def test_a_run_that_is_done_is_left_as_it_is_and_another_configuration_does_not_resume(tmp_path):
  other = dataclasses.replace(_CONFIG, checkpoint_every=2)
  with pytest.raises(PlacetoError, match="actors at most"):  # before the first checkpoint
    Trainer(_Counting, other, str(tmp_path)).run(actors=10**6)
  figures = _run(str(tmp_path)).run()
  assert train(lambda *_, **__: 1 / 0, _CONFIG, str(tmp_path)) == figures
  with pytest.raises(PlacetoError, match="checkpoint_every=1, now it is 2; choose another"):
    Trainer(_Counting, other, str(tmp_path))

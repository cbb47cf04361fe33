import tensorflow as tf

from placeto_tf.training import curves


def test_iterations_that_were_done_twice_count_once_and_are_drawn(tmp_path):
  for first, values in ((1, (3.0, 2.0, 9.0)), (3, (1.5, 1.0))):  # killed after 3, resumed at 3
    with tf.summary.create_file_writer(str(tmp_path / "train")).as_default():
      for step, value in enumerate(values, start=first):
        tf.summary.scalar("Metrics/loss", value, step=step)
        tf.summary.scalar("StepTime/a", value, step=step)
  assert curves.read(str(tmp_path / "train")) == {"loss": {1: 3.0, 2: 2.0, 3: 1.5, 4: 1.0}}
  curves.draw(str(tmp_path))
  assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")

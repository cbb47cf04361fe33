"""What a result directory says runs what is there, in a process without this package."""

import re

import pytest
import tensorflow as tf

import graph_files
import placeto_tf as placeto
import subprograms
from placeto_tf.placements import write_placed
from placeto_tf.placing import what_now
from placeto_tf.programs import shared_flags


def _meta_graph():
  """ones [3, 4] x [4, 2] has 4 everywhere; y is of it and of zeros, and named by its device."""
  with tf.Graph().as_default() as graph:
    x = tf.compat.v1.placeholder(tf.float32, [None, 4], name="x")
    name = tf.compat.v1.placeholder(tf.string, [], name="name")
    weights = tf.compat.v1.get_variable("weights", [4, 2], initializer=tf.ones_initializer())
    y = tf.matmul(x + 1.0, weights)
    tf.strings.join([name, tf.strings.as_string(tf.reduce_sum(y))], name="y")
    tf.compat.v1.global_variables_initializer()
    return tf.compat.v1.train.export_meta_graph(
        graph=graph, saver_def=tf.compat.v1.train.Saver().saver_def)


def _queue_meta_graph():
  """The mean of batches of ones, which a queue holds, of a producer that counts its epochs."""
  v1 = tf.compat.v1
  with tf.Graph().as_default() as graph:
    row, = v1.train.slice_input_producer([tf.ones([8, 4])], num_epochs=2, shuffle=False)
    tf.reduce_mean(v1.train.batch([row], 4), name="mean")
    return v1.train.export_meta_graph(graph=graph)


def _iterator_meta_graph():
  """The sum of a batch of an iterator that has to be initialized, of words looked up in a table."""
  v1 = tf.compat.v1
  with tf.Graph().as_default() as graph:
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(["a"], [1.0]), default_value=0.0)
    iterator = v1.data.make_initializable_iterator(
        tf.data.Dataset.from_tensor_slices(["a"] * 4).batch(4))
    tf.reduce_mean(table.lookup(iterator.get_next()), name="mean")
    return v1.train.export_meta_graph(graph=graph)


def _saved_model(path):
  class Model(tf.Module):
    def __init__(self):
      super().__init__()
      self.weights = tf.Variable(tf.ones([4, 2]))

    @tf.function(input_signature=[tf.TensorSpec([None, 4], tf.float32, name="x")])
    def serve(self, x):
      return {"y": tf.reduce_sum(tf.matmul(x + 1.0, self.weights))}

  model = Model()
  tf.saved_model.save(model, path, signatures={"serve": model.serve})
  return path


def _file(kind, folder, make=_meta_graph):
  if kind == "saved_model":
    return _saved_model(str(folder / "source"))
  if kind == "tf1_saved_model":
    with tf.Graph().as_default() as graph, tf.compat.v1.Session() as session:
      tf.compat.v1.train.import_meta_graph(make())
      session.run("init")
      x, name, y = (graph.get_tensor_by_name(f"{name}:0") for name in ("x", "name", "y"))
      tf.compat.v1.saved_model.simple_save(
          session, str(folder / "source"), {"x": x, "name": name}, {"y": y})
    return str(folder / "source")
  proto = make() if "meta" in kind else make().graph_def
  return graph_files.write(proto, folder / f"graph.{kind}")


def _place(kind, folder, make=_meta_graph, fetch="y:0"):
  """(graph, devices, directory) of a graph placed at random on two CPUs and written."""
  out = folder / kind
  out.mkdir(parents=True)
  graph = placeto.load_graph(
      _file(kind, folder, make), batch_size=3, fetches=None if "saved_model" in kind else [fetch])
  result = placeto.place(graph, "cpu:2", method="random", seed=1, max_evaluations=5)
  write_placed(graph, result.placement, str(out))
  return graph, result.placement.devices, str(out)


def _run(code, cwd):
  """Standard output of a fresh Python process that ran code and met nothing of this package."""
  code += "\nimport sys; assert not any(name.startswith('placeto') for name in sys.modules)\n"
  return subprograms.python("-c", code, cwd=cwd, without=["PYTHONPATH"]).stdout


# TF1 graphs, which one process runs one after another: how they are made, their files, a tensor.
_OF_TF1 = ((_meta_graph, ("meta", "meta.pbtxt", "pb", "pbtxt", "tf1_saved_model"), "y:0"),
           (_queue_meta_graph, ("meta",), "mean:0"),
           (_iterator_meta_graph, ("meta", "pb"), "mean"))


@pytest.mark.parametrize("cases, printed", [
    (_OF_TF1, {"24": 5, "1.0": 3}), ([(_meta_graph, ["saved_model"], None)], {"24": 1})])
def test_the_readme_runs_what_was_written(cases, printed, tmp_path):
  """Its lines start queues, iterators and tables."""
  code = ""
  for make, kinds, fetch in cases:
    for kind in kinds:
      graph, devices, out = _place(kind, tmp_path / make.__name__, make, fetch)
      readme = re.search(
          r"```python\n(.*?)```", what_now.readme(graph, devices), re.DOTALL).group(1)
      code += f"import os; os.chdir({out!r})\n{readme}\n"
      if kind != "saved_model":
        code += "tf.reset_default_graph()\n"
  shown = _run(code, str(tmp_path))
  assert {text: shown.count(text) for text in printed} == printed, shown


@pytest.mark.parametrize("kind", ["meta", "pb", "saved_model"])
def test_the_readmes_command_reads_the_graph_that_was_placed(kind, tmp_path, monkeypatch):
  """It runs in the directory of the result, and so does a cluster's file of another one."""
  graph, devices, out = _place(kind, tmp_path)
  cluster = tmp_path / "cluster.json"
  cluster.write_text("{}")
  monkeypatch.chdir(tmp_path)
  readme = what_now.readme(graph, devices, "source", "cluster.json")
  monkeypatch.chdir(out)
  command = re.search(r"```sh\n(.*?)```", readme, re.DOTALL).group(1)
  flags = re.findall(r"--(\w+)=(\S+)", command)
  values = dict(flags)
  again = placeto.load_graph(
      values["graph"], fetches=values["fetches"].split(",") if "fetches" in values else None,
      feed_shapes=shared_flags.parse_feed_shapes(
          [value for name, value in flags if name == "feed_shapes"]))
  assert values["placement"] == "placement.json" and values["cluster"] == str(cluster)
  assert again.fingerprint == graph.fingerprint and again.feeds == graph.feeds


def test_devices_of_workers_are_reached_through_the_first_of_them(tmp_path):
  graph = placeto.load_graph(_file("pb", tmp_path), batch_size=3, fetches=["y:0"])
  for workers, address in (["host1:2", "host2:2"], "host1:2"), (["local:2"], "your_first_worker"):
    readme = what_now.readme(graph, ("/job:worker/task:0/device:CPU:0",), workers=workers)
    assert f'session = tf.Session("grpc://{address}' in readme


def test_hundreds_of_feeds_are_in_the_readme_and_not_on_the_screen():
  with tf.Graph().as_default() as graph:
    tf.add_n([tf.compat.v1.placeholder(tf.float32, [2], f"x{i}") for i in range(200)], name="y")
  graph = placeto.load_graph(graph, fetches=["y:0"])
  assert "the lines of placed/README.md" in what_now.last_lines(graph, ["/CPU:0"], "placed")
  assert "'x199:0': np.zeros([2])" in what_now.readme(graph, ["/CPU:0"])


def test_the_readme_of_a_keras_model_traces_it_as_it_was_placed():
  model = tf.keras.Sequential([tf.keras.Input([4]), tf.keras.layers.Dense(2)])
  graph = placeto.load_graph(model, batch_size=3)
  placement = placeto.place(graph, "cpu:1", method="single").placement
  line = re.search(r"# function = (.*?)\n#(.*)\n", what_now.readme(graph, ["/CPU:0"]))
  code = "".join(line.groups()).replace("[None, ...]", "[None, 4]")
  function = eval(code, {"tf": tf, "model": model})  # pylint: disable=eval-used
  placed = placement.apply(function)
  assert {op.device for op in placed.graph.get_operations() if op.type == "MatMul"} == {
      "/device:CPU:0"}

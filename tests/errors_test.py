"""Sentences made of errors."""

import ast
import pathlib
import re

import tensorflow as tf

import placeto_tf
from placeto_tf.errors import FOR_A_SHELL, one_line, option

# Commands, and the programs themselves, have flags wherever they are read.
COMMAND = re.compile(r"tensorboard --|ray start|pip install|placeto-|runtime\.worker|--task="
                     r"|--(head|policy|no-deps)\b|--of_parent|^--workers")
PROGRAMS = ("entry_point.py", "shared_flags.py", "worker.py", "what_now.py")


def test_an_error_of_tensorflow_is_told_by_its_cause():
  v1 = tf.compat.v1
  with tf.Graph().as_default(), v1.Session() as session:
    ids = v1.placeholder(tf.int32, [1], name="ids")
    rows = tf.gather(tf.ones([3, 2]), ids, name="rows")
    try:
      session.run(rows, {ids: [7]})
    except tf.errors.OpError as error:
      said = one_line(error)
  assert said.startswith("indices[0] = 7 is not in [0, 3)"), said


def test_messages_name_arguments_in_python_and_flags_in_a_shell(monkeypatch):
  monkeypatch.setenv(FOR_A_SHELL, "")
  options = [("fetches", ["a", "b"]), ("batch_size", 32), ("trusted", True), ("look", "yes"),
             ("check_replicas", False), ("feed_shapes", {"x": (32, 8), "y": ()}), ("tags",)]
  assert [option(*each) for each in options] == [
      "fetches=['a', 'b']", "batch_size=32", "trusted=True", "look='yes'", "check_replicas=False",
      "feed_shapes={'x': (32, 8), 'y': ()}", "tags=..."]
  assert option("import", in_python="use(...)") == "use(...)"
  monkeypatch.setenv(FOR_A_SHELL, "1")
  assert [option(*each) for each in options] == [
      "--fetches=a,b", "--batch_size=32", "--trusted", "--look=yes", "--check_replicas=no",
      "--feed_shapes=x:32x8 --feed_shapes=y:scalar", "--tags=..."]


def test_no_text_of_the_library_has_a_flag_that_python_lacks():
  package, found = pathlib.Path(placeto_tf.__file__).parent, []
  for path in package.rglob("*.py"):
    if path.name not in PROGRAMS:
      tree = ast.parse(path.read_text(encoding="utf-8"))
      documents = {id(node.body[0].value) for node in ast.walk(tree) if isinstance(
          node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node)}
      found += [(path.name, node.value) for node in ast.walk(tree) if isinstance(
          node, ast.Constant) and isinstance(node.value, str) and id(node) not in documents
                and re.search(r"--[a-z]", node.value) and not COMMAND.search(node.value)]
  assert not found

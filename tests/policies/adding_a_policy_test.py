"""docs/adding_a_policy.md, followed to the letter: the policy that it shows trains and places."""

import importlib
import pathlib
import re
import sys

import numpy as np
import pytest

from placeto_tf import policies
from placeto_tf.errors import PlacetoError
from placeto_tf.placing import registry, running
from placeto_tf.problem.budget import Budget
from random_problem import means_of_samples, random_problem

DOCUMENT = pathlib.Path(__file__).resolve().parents[2] / "docs" / "adding_a_policy.md"
NAME = "placeto_tf.policies.perceptron"


@pytest.fixture(name="folder")
def folder_fixture(tmp_path, monkeypatch, eagerly):
  """The files that the document shows, in a folder of policies beside the package's own."""
  shown = re.findall(
      r"`(\S+\.py)`[^`]*(?:`[^`]*`)?:\n\n```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
  assert [name for name, _ in shown] == ["perceptron/__init__.py", "perceptron/policy.py"]
  for name, content in shown:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(content)
  monkeypatch.setattr(policies, "__path__", [*policies.__path__, str(tmp_path)])
  importlib.invalidate_caches()
  yield tmp_path
  for name in (NAME, f"{NAME}.policy"):
    sys.modules.pop(name, None)
  vars(policies).pop("perceptron", None)


def test_its_method_is_found_and_samples_better_placements_as_it_learns(folder):
  problem = random_problem()
  means = means_of_samples(problem)
  placement = running.run(
      problem, registry.find("perceptron"), Budget(max_evaluations=640), seed=0)
  assert problem.simulator.simulate(placement).step_time_us == problem.search_log.best_objective_us
  assert np.mean(means[-5:]) < 0.9 * np.mean(means[:5])




def test_a_policy_of_another_package_is_found_by_its_entry_point_or_by_name(
    tmp_path, monkeypatch):
  package = tmp_path / "theirs"
  package.mkdir()
  (package / "__init__.py").write_text("")
  declared = """from placeto_tf.problem.method import Kind, Method, deferred
METHODS = (Method("{0}", Kind.ONE_SHOT, deferred("theirs.{0}", "place")),)
TRAINABLE = deferred("theirs.{0}", "record")
record = lambda: "{0} is trained"
"""
  for name in ("installed", "given"):
    (package / f"{name}.py").write_text(declared.format(name))
  about = tmp_path / "theirs-1.0.dist-info"
  about.mkdir()
  (about / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
  (about / "entry_points.txt").write_text(
      "[placeto_tf.policies]\ninstalled = theirs.installed\n")
  monkeypatch.syspath_prepend(str(tmp_path))
  monkeypatch.setattr(policies, "_used", {})
  policies._installed.cache_clear()
  try:
    assert registry.find("installed").kind.learned
    assert policies.trainable()["installed"]() == "installed is trained"
    with pytest.raises(PlacetoError, match="'theirs.none' cannot be imported .*; give the module"):
      policies.use("theirs.none")
    with pytest.raises(PlacetoError, match="'theirs' declares neither METHODS nor TRAINABLE"):
      policies.use("theirs")
    policies.use("theirs.given")
    assert {"given", "installed"} <= set(registry.names()) & set(policies.trainable())
  finally:
    policies._installed.cache_clear()

"""BUILD leaves out no Python file and no test; folders and modules import one way."""

import ast
import graphlib
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent


def _glob(patterns, exclude=(), **_):
  found, without = ({str(path.relative_to(ROOT)) for pattern in each for path in ROOT.glob(pattern)
                     if path.is_file()} for each in (patterns, exclude))
  return sorted(found - without)


def _build():
  """(target -> its attributes, names) of BUILD, which is Python where its rules are functions."""
  targets = {}

  def rule(name, **attributes):
    assert name not in targets, name
    targets[name] = attributes

  names = {"glob": _glob, **dict.fromkeys(
      ("py_library", "py_binary", "py_test", "filegroup"), rule)}
  names.update(dict.fromkeys(("load", "package", "licenses", "exports_files"), lambda *_, **__: 0))
  exec((ROOT / "BUILD").read_text(), names)
  return targets, names


def test_every_python_file_is_in_a_target_and_all_that_targets_need_is_one():
  targets, _ = _build()
  listed = set().union(*(attributes.get("srcs", ()) for attributes in targets.values()))
  files = {str(path.relative_to(ROOT)) for folder in ("placeto_tf", "examples", "scripts", "tests")
           for path in (ROOT / folder).rglob("*.py")}
  assert files <= listed and all((ROOT / path).exists() for path in listed)
  needed = set().union(*(attributes.get("deps", ()) for attributes in targets.values()))
  assert needed <= {f":{name}" for name in targets}
  tests = {path[:-len(".py")].replace("/", "_") for path in files if path.endswith("_test.py")}
  assert tests <= set(targets)


def _folders():
  """Folder -> the folders that BUILD lets it import from, directly or through others."""
  above = {}
  for folder, direct in _build()[1]["FOLDERS"]:
    assert set(direct) <= set(above), f"{folder} stands above a folder that it imports from"
    above[folder] = set(direct).union(*(above[name] for name in direct))
  return above


def test_folders_import_only_from_folders_above_them():
  above = _folders()
  assert {path.parent.name for path in (ROOT / "placeto_tf").glob("*/__init__.py")} == set(above)
  wrong = []
  for folder in above:
    for path in (ROOT / "placeto_tf" / folder).rglob("*.py"):
      pattern = r"^ *(?:from|import) placeto_tf\.(\w+)"
      for used in re.findall(pattern, path.read_text(), re.MULTILINE):
        if used not in above[folder] | {folder, "errors", "collector", "on_use"}:
          wrong.append(f"{path.relative_to(ROOT)} imports from {used}")
  assert not wrong


def _imported_modules():
  """Module of placeto_tf -> the modules of placeto_tf that it imports, wherever it does."""
  modules = {}
  for path in (ROOT / "placeto_tf").rglob("*.py"):
    parts = path.relative_to(ROOT).with_suffix("").parts
    modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
  imported = {}
  for module, path in modules.items():
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
      if isinstance(node, ast.Import):
        found.update(alias.name for alias in node.names)
      elif isinstance(node, ast.ImportFrom):
        named = (f"{node.module}.{alias.name}" for alias in node.names)
        found.update(name if name in modules else node.module for name in named)
    imported[module] = (found & set(modules)) - {module}
  return imported


def test_no_modules_import_one_another_in_a_circle_not_even_inside_functions():
  imported = _imported_modules()
  assert "placeto_tf.clusters.presets" in imported["placeto_tf.clusters.cluster"]
  with pytest.raises(graphlib.CycleError):
    graphlib.TopologicalSorter({"a": {"b"}, "b": {"c"}, "c": {"b"}}).prepare()
  graphlib.TopologicalSorter(imported).prepare()  # an error names the circle

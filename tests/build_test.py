"""BUILD is readable by Bazel and leaves out no Python file; folders and modules import one way."""

import ast
import pathlib
import re
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Enough of rules_python for a query without a network: rules with the attributes BUILD uses.
STUB = """
_ATTRS = {
    "srcs": attr.label_list(allow_files = True),
    "data": attr.label_list(allow_files = True),
    "deps": attr.label_list(),
    "main": attr.label(allow_files = True),
    "imports": attr.string_list(),
}
def _impl(ctx):
    return []
py_library = rule(implementation = _impl, attrs = _ATTRS)
py_binary = rule(implementation = _impl, attrs = _ATTRS)
py_test = rule(implementation = _impl, attrs = _ATTRS, test = True)
"""


def python_files():
  """Every Python file of the tree that belongs to the project, by its path from the root."""
  files = {"setup.py"}
  for folder in ("placeto_tf", "examples", "scripts", "tests"):
    files.update(str(path.relative_to(ROOT)) for path in (ROOT / folder).rglob("*.py"))
  return files


@pytest.fixture(name="query")
def query_fixture(tmp_path):
  bazel = shutil.which("bazel")
  if bazel is None:
    pytest.skip("Bazel is not installed")
  stub = tmp_path / "rules_python"
  (stub / "python").mkdir(parents=True)
  (stub / "WORKSPACE").write_text('workspace(name = "rules_python")\n')
  (stub / "BUILD").write_text("")
  (stub / "python" / "BUILD").write_text("")
  (stub / "python" / "defs.bzl").write_text(STUB)
  command = [bazel, "--batch", f"--output_user_root={tmp_path / 'bazel'}"]

  def query(expression):
    found = subprocess.run(
        [*command, "query", f"--override_repository=rules_python={stub}", expression],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    if found.returncode and re.search(r"bzlmod|MODULE\.bazel|registry", found.stderr):
      pytest.skip("this Bazel resolves modules from its registry, which needs a network")
    assert found.returncode == 0, found.stderr
    return set(found.stdout.split())

  return query


def test_bazel_reads_the_whole_tree_and_no_python_file_is_missing(query):
  listed = query('kind("source file", //...:all-targets)')
  listed = {label[len("//:"):] for label in listed if label.startswith("//:")}
  assert python_files() - listed == set()


def test_every_program_and_every_test_has_its_target(query):
  binaries = query("kind(py_binary, //...)")
  tests = query("kind(py_test, //...)")
  programs = {p.stem for p in (ROOT / "scripts").glob("*.py")} - {"__init__"}
  assert binaries == {f"//:{program}" for program in programs}
  expected = {str(p.relative_to(ROOT).with_suffix("")).replace("/", "_")
              for p in (ROOT / "tests").rglob("*_test.py")}
  assert tests == {f"//:{name}" for name in expected}


def _folders():
  """Folder -> the folders that BUILD lets it import from, directly or through others."""
  text = (ROOT / "BUILD").read_text()
  found = re.search(r"^FOLDERS = (\[.*?^\])", text, re.DOTALL | re.MULTILINE)
  listed = ast.literal_eval(found.group(1))
  above = {}
  for folder, direct in listed:
    assert set(direct) <= set(above), f"{folder} stands above a folder that it imports from"
    above[folder] = set(direct).union(*(above[name] for name in direct))
  return above


def test_folders_import_only_from_folders_above_them():
  above = _folders()
  folders = {path.parent.name for path in (ROOT / "placeto_tf").glob("*/__init__.py")}
  assert folders == set(above)
  wrong = []
  for folder in above:
    for path in (ROOT / "placeto_tf" / folder).rglob("*.py"):
      pattern = r"^ *(?:from|import) placeto_tf\.(\w+)"
      for used in re.findall(pattern, path.read_text(), re.MULTILINE):
        if used not in above[folder] | {folder, "errors", "collector"}:
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


def _circle(imported):
  """Modules that import one another in a circle, or an empty list.

  What is left, after modules that import nothing that is left are taken away again and again,
  leads into circles; so a walk through it comes back to a module.
  """
  left = dict(imported)
  while True:
    free = [module for module, found in left.items() if not found & set(left)]
    if not free:
      break
    for module in free:
      del left[module]
  walk = sorted(left)[:1]
  while walk and walk[-1] not in walk[:-1]:
    walk.append(min(left[walk[-1]] & set(left)))
  return walk[walk.index(walk[-1]):] if walk else []


def test_no_modules_import_one_another_in_a_circle_not_even_inside_functions():
  imported = _imported_modules()
  assert "placeto_tf.clusters.presets" in imported["placeto_tf.clusters.cluster"]
  assert _circle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["b", "c", "b"]
  assert _circle(imported) == []

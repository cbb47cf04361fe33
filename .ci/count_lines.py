"""Counts lines of code, docstrings and comments by folder, and refuses what grew past its limit.

  python .ci/count_lines.py [--limits]

Lines of code are those without docstrings, comments and blanks. `--limits` compares with
[tool.placeto_tf.limits] of pyproject.toml and exits with 1 where a figure is worse. Limits are only
tightened: what is added takes something out.
"""

import ast
import collections
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# First words of a docstring that has neither a verb nor a noun at its beginning.
NOUNLESS = re.compile(
    r"^(What|Whether|Those|That|How|Which|Where|Who|When|As|One|It|Of|Such|Each|All)\b")


def called_elsewhere(package):
  """Returns the names that a folder of the package imports, or reads as attributes, from others."""
  named, defined = (collections.defaultdict(set) for _ in range(2))  # name -> folders
  for path in package.rglob("*.py"):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
      if isinstance(node, ast.ImportFrom):
        for alias in node.names:
          named[alias.name].add(path.parent)
      elif isinstance(node, ast.Attribute):
        named[node.attr].add(path.parent)
      elif isinstance(node, ast.FunctionDef):
        defined[node.name].add(path.parent)
  return {name for name, folders in defined.items() if named[name] - folders}


def measure(path, shared=frozenset()):
  """Returns the counts of one file: lines by their kind, and functions by their docstrings.

  Args and Returns are asked of the functions that other folders call (`shared`).
  """
  text = path.read_text(encoding="utf-8")
  found = collections.Counter()
  docstrings = set()  # numbers of their lines
  for node in ast.walk(ast.parse(text)):
    if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
      continue
    doc = ast.get_docstring(node)
    if doc:
      docstrings.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
      found["documented"] += bool(doc)
      found["nounless"] += bool(doc and NOUNLESS.match(doc.strip()))
      named = [each for each in node.args.args + node.args.kwonlyargs
               if each.arg not in ("self", "cls")]
      if len(named) >= 2 and not node.name.startswith("_") and node.name in shared:
        found["public"] += 1
        found["args"] += bool(doc and re.search(r"^\s*Args:", doc, re.MULTILINE))
        nothing = isinstance(node.returns, ast.Constant)  # -> None
        found["returns"] += nothing or bool(
            doc and re.search(r"^\s*(Returns|Yields)\b", doc, re.MULTILINE))
  for number, line in enumerate(text.splitlines(), 1):
    line = line.strip()
    if line and number not in docstrings:
      found["comments"] += line.startswith("#") or "  # " in line
      found["code"] += not line.startswith("#")
  return found


def total(folder, shared=frozenset()):
  """Returns the counts of all files below a folder."""
  return sum((measure(path, shared) for path in sorted(folder.rglob("*.py"))),
             collections.Counter())


def main():
  """Prints the counts; returns whether a limit is exceeded."""
  package = total(ROOT / "placeto_tf", called_elsewhere(ROOT / "placeto_tf"))
  folders = {path.name: total(path)["code"] for path in (ROOT / "placeto_tf").iterdir()
             if (path / "__init__.py").exists()}
  for name, code in sorted(folders.items(), key=lambda item: -item[1]):
    print(f"{name:14} {code:6,}")

  def share(part, whole):
    return 100 * package[part] / max(1, package[whole])

  figures = {
      "code": package["code"], "tests": total(ROOT / "tests")["code"],
      "scripts": total(ROOT / "scripts")["code"],
      "nounless_percent": share("nounless", "documented"),
      "args_percent": share("args", "public"), "returns_percent": share("returns", "public"),
      "comments_percent": share("comments", "code")}
  for name, figure in figures.items():
    print(f"{name:18} {figure:8,.{int(name.endswith('percent'))}f}")
  if "--limits" not in sys.argv:
    return False
  section = (ROOT / "pyproject.toml").read_text().partition("[tool.placeto_tf.limits]\n")[2]
  limits = dict(re.findall(r"^(\w+) = ([\d.]+)", section.partition("\n[")[0], re.MULTILINE))
  worse = False
  for name, text in limits.items():
    limit, figure = float(text), figures[name]
    least = name in ("args_percent", "returns_percent", "comments_percent")
    if figure < limit if least else figure > limit:
      worse = True
      print(f"{name} is {figure:,.1f}, expected at {'least' if least else 'most'} {limit:,g}: take "
            "something out, or write it better")
  return worse


if __name__ == "__main__":
  sys.exit(main())

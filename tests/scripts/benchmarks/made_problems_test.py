"""The comparison on problems made of arrays prints a row a kind and method."""


def test_it_prints_a_row_a_kind_and_method(run_program):
  done = run_program("made_problems", "--kinds=tasks", "--count=1", "--budgets=12", "--seeds=0",
                     "--methods=placeto,heft")
  assert done.code == 0, done.err
  rows = [line.split(" | ") for line in done.out.splitlines()[2:]]
  assert [row[1] for row in rows] == ["`placeto`", "`heft`"]
  assert all(0 < float(row[2].split()[0]) <= 1 for row in rows)

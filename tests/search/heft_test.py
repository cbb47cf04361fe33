import numpy as np

from placeto_tf.search.heft import plan, schedule_heft


def test_each_op_goes_where_it_is_fast(make_problem, make_cluster):
  problem = make_problem(
      [[1.0, 50.0], [50.0, 1.0]], cluster=make_cluster(2, speeds=[0, 1]))
  assert schedule_heft(problem).tolist() == [0, 1]


def test_queues_keep_the_form_with_links_from_sending_everything(make_problem):
  # One source feeds six ops with a tensor each of 20 us. As published all six can go to the other
  # device at once; the bus takes them one after the other, so half of them is better kept.
  edges = [(i, i + 6) for i in range(6)]
  problem = make_problem([1.0] * 6 + [30.0] * 6, edges, [2000] * 12)
  plain = problem.evaluate_ops(plan(problem, links=False)).step_time_us[0]
  linked = problem.evaluate_ops(plan(problem, links=True)).step_time_us[0]
  assert linked <= plain
  assert np.bincount(plan(problem, links=True), minlength=2).min() > 0
  assert problem.evaluate_ops(schedule_heft(problem)).step_time_us[0] == linked

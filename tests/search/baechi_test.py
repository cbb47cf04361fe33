from placeto_tf.search.baechi import m_etf


def test_m_etf_starts_each_op_as_early_as_it_can(make_problem):
  # 0 and 1 start at once on one device each; 2 follows 0 there because a transfer takes longer.
  problem = make_problem([10.0, 8.0, 5.0], [(0, 2)], [1000] * 3)
  found = m_etf(problem).tolist()
  assert found[0] != found[1] and found[2] == found[0]


def test_m_etf_leaves_a_full_device_alone(make_problem, make_cluster):
  problem = make_problem(
      [10.0, 10.0], [(0, 1)], persistent_bytes=[60, 60], cluster=make_cluster(2, memory=100))
  assert sorted(m_etf(problem).tolist()) == [0, 1]

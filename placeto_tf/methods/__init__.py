"""Every method of placing: the registry, what runs one, and the methods that learn.

  registry         finds what modules declare; see `placeto_tf.problem.method`
  running          runs one method, from the start that its kind takes
  auto             runs the other methods in turn
  learned_groups   groups that a policy learns
  measured_search  goes on from what placers found, in real sessions
  device_pointer/, placeto/, one_graph/, gdp/: the policies as methods
"""

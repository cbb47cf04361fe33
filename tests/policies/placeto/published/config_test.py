from placeto_tf.policies.placeto.published.config import PublishedConfig


def test_the_papers_choices_are_the_papers():
  config = PublishedConfig()
  assert (config.learning_rate, config.final_learning_rate) == (1e-3, 1e-4)
  assert config.sum_gradients
  assert (config.entropy, config.final_entropy) == (0.003, 0.0)
  network = config.network
  assert (network.embedding, network.rounds, network.width) == ("placeto", 8, None)
  assert network.transform_layers == 2
  rules = config.environment
  assert rules.num_episodes == 8
  assert (rules.start, rules.order, rules.reward) == ("given", "topological", "intermediate")

import numpy as np
import pytest
import tensorflow as tf

from placeto_tf.errors import PlacementError
from placeto_tf.problem.budget import Budget
from placeto_tf.training import one_shot
from placeto_tf.training.one_shot import OneShotConfig, OneShotTrainer
from placeto_tf.training.one_shot_environment import OneShotEnvironment
from placeto_tf.training.one_shot_policy import NEVER, OneShotPolicy, Sample, categorical
from random_problem import random_problem


class Independent(OneShotPolicy):
  """A table of logits for each graph: what every other policy is an improvement on."""

  def __init__(self, *allowed):
    super().__init__()
    self.masks = [np.where(each, 0.0, NEVER).astype(np.float32) for each in allowed]
    self.logits = [tf.Variable(tf.zeros_like(mask)) for mask in self.masks]

  def sample(self, rng, count, graph=0):
    logits = (self.logits[graph] + self.masks[graph]).numpy()
    actions = (logits + rng.gumbel(size=(count,) + logits.shape)).argmax(-1).astype(np.int32)
    return Sample(actions, actions, self.log_prob(tf.constant(actions), graph)[0].numpy())

  def log_prob(self, choices, graph=0):
    logits = tf.tile((self.logits[graph] + self.masks[graph])[None], [choices.shape[0], 1, 1])
    return categorical(logits, choices)


def count_cost(placements):
  """1 s, and 1 s more for every group that is not on device 1."""
  step_time_us = 1e6 * (1 + (placements != 1).sum(axis=1))
  return step_time_us, {}


def trainer_of(*allowed, seed=0, **options):
  config = OneShotConfig(**options)
  environments = [
      OneShotEnvironment(each, count_cost, batch_size=config.batch_size, graph=i,
                         num_graphs=len(allowed)) for i, each in enumerate(allowed)]
  return OneShotTrainer(Independent(*allowed), environments, config, seed)


def test_reinforce_by_hand():
  # Placement 0 is 0.5 better than the baseline, placement 1 is 1 worse:
  # -(0.5 (-1 - 2) + (-1) (-3 - 1)) / 2 = -(-1.5 + 4) / 2, and entropies 1, 1, 2, 0 of mean 1.
  log_probs = tf.constant([[-1.0, -2.0], [-3.0, -1.0]])
  entropy = tf.constant([[1.0, 1.0], [2.0, 0.0]])
  loss = one_shot.reinforce_loss(tf.constant([0.5, -1.0]), tf.constant(0.1), 2)
  assert float(loss(log_probs, entropy, slice(None))) == pytest.approx(-1.25 - 0.1)
  pieces = [loss(log_probs[:, c], entropy[:, c], c) for c in (slice(0, 1), slice(1, 2))]
  assert float(sum(pieces)) == pytest.approx(-1.35)


def test_ppo_by_hand():
  # Ratios 2, 1 of a good placement (advantage 1): clipped at 1.2, 1. Ratios 0.5, 2 of a bad one
  # (-1): the worse of 0.5 and 0.8, -0.8, and of 2 and 1.2, -2. Mean (1.2 + 1 - 0.8 - 2) / 4.
  ratio = np.array([[2.0, 1.0], [0.5, 2.0]], dtype=np.float32)
  old = tf.constant([[-1.0, -2.0], [-3.0, -4.0]])
  loss = one_shot.ppo_loss(tf.constant([1.0, -1.0]), old, 0.2, tf.constant(0.5), 2)
  log_probs, entropy = old + np.log(ratio), tf.constant([[1.0, 1.0], [1.0, 1.0]])
  assert float(loss(log_probs, entropy, slice(None))) == pytest.approx(0.6 / 4 - 0.5)
  pieces = [loss(log_probs[:, c], entropy[:, c], c) for c in (slice(0, 1), slice(1, 2))]
  assert float(sum(pieces)) == pytest.approx(0.6 / 4 - 0.5)


def test_the_baseline_is_the_average_before_the_batch_and_each_graph_has_its_own():
  baseline = one_shot.MovingBaseline(2, decay=0.75)
  np.testing.assert_allclose(baseline.advantages(0, np.array([-3.0, -1.0])), [-1.0, 1.0])
  np.testing.assert_allclose(baseline.advantages(0, np.array([-1.0, -1.0])), [1.0, 1.0])
  np.testing.assert_allclose(baseline.value[0], -1.75)  # 0.75 * -2 + 0.25 * -1
  np.testing.assert_allclose(baseline.advantages(1, np.array([-8.0])), [0.0])
  np.testing.assert_allclose(baseline.value[0], -1.75)


def test_where_only_one_device_is_allowed_there_is_nothing_to_learn_or_to_explore():
  logits = tf.constant([[[3.0, NEVER, NEVER], [0.0, 0.0, NEVER]]])
  log_probs, entropy = categorical(logits, tf.constant([[0, 1]]))
  np.testing.assert_allclose(log_probs, [[0.0, np.log(0.5)]])
  np.testing.assert_allclose(entropy, [[0.0, np.log(2)]])


@pytest.mark.parametrize("options", [
    {}, {"algorithm": "ppo", "epochs": 4}, {"baseline": "batch", "scale_advantages": True}])
def test_every_variant_learns_what_a_group_at_a_time_can_tell(options):
  allowed = np.ones((4, 3), dtype=bool)
  allowed[3] = [True, False, False]
  trainer = trainer_of(allowed, batch_size=16, learning_rate=0.1, **options)
  for _ in range(60):
    rewards = trainer.update()
  assert rewards.mean() > -1.6  # the best is -sqrt(2): one group cannot go to device 1
  assert trainer.policy.logits[0].numpy()[:3].argmax(axis=1).tolist() == [1, 1, 1]
  np.testing.assert_array_equal(trainer.policy.logits[0].numpy()[3], 0.0)
  assert trainer.average_return.result() == pytest.approx(rewards.mean(), abs=0.3)


def test_one_update_on_two_graphs_follows_the_mean_of_their_gradients():
  big, small = np.ones((5, 2), dtype=bool), np.ones((2, 2), dtype=bool)
  trainer = trainer_of(big, small, batch_size=8, learning_rate=0.1)
  assert trainer.update(graphs=(0, 1)).shape == (2, 8)
  assert all(np.abs(logits.numpy()).max() > 0 for logits in trainer.policy.logits)
  before = trainer.policy.logits[0].numpy()
  trainer = trainer_of(big, small, batch_size=8, learning_rate=0.1)
  trainer.update(graphs=(1,))
  assert np.abs(trainer.policy.logits[0].numpy()).max() == 0 < np.abs(before).max()


def test_gradients_that_are_no_numbers_leave_the_weights_alone():
  trainer = trainer_of(np.ones((2, 2), dtype=bool), batch_size=4)
  trainer._advantages = lambda graph, rewards: rewards * np.nan
  trainer.update()
  assert trainer.skipped == 1
  np.testing.assert_array_equal(trainer.policy.logits[0].numpy(), 0.0)


def test_a_checkpoint_brings_back_weights_and_baseline(tmp_path):
  allowed = np.ones((3, 2), dtype=bool)
  trainer = trainer_of(allowed, batch_size=8, learning_rate=0.1)
  trainer.update()
  path = trainer.checkpoint.write(str(tmp_path / "checkpoint"))
  other = trainer_of(allowed, batch_size=8, learning_rate=0.1, seed=5)
  other.checkpoint.read(path).assert_existing_objects_matched()
  np.testing.assert_array_equal(other.policy.logits[0], trainer.policy.logits[0])
  np.testing.assert_array_equal(other._baseline.value, trainer._baseline.value)


def search(budget, seed=0, **options):
  problem = random_problem()
  config = OneShotConfig(batch_size=8, learning_rate=0.1)
  trainer = one_shot.search_trainer(problem, Independent(problem.allowed), config, budget, seed)
  one_shot.search(problem, trainer, budget, **options)
  return problem, trainer


@pytest.mark.parametrize("evaluations", [1, 5, 8, 50])
def test_a_search_stays_within_its_budget_and_the_problem_remembers_the_best(evaluations):
  problem, trainer = search(Budget(max_evaluations=evaluations))
  assert 0 < problem.account.evaluations <= evaluations
  assert problem.account.evaluations == trainer.updates * trainer.environments[0].batch_size
  step_time_us = problem.simulator.simulate(problem.account.best_placement).step_time_us
  assert step_time_us == problem.account.best_objective_us


def test_the_same_seed_gives_the_same_search_and_another_seed_another():
  (first, _), (second, _), (third, _) = (
      search(Budget(max_evaluations=80), seed) for seed in (1, 1, 2))
  histories = [[row[::2] for row in problem.account.history] for problem in (first, second, third)]
  assert histories[0] == histories[1] != histories[2]


def test_a_search_writes_summaries(tmp_path):
  search(Budget(max_evaluations=40), root_dir=str(tmp_path))
  tags = set()
  for path in (tmp_path / "train").iterdir():
    for record in tf.data.TFRecordDataset(str(path)):
      tags.update(
          value.tag for value in tf.compat.v1.Event.FromString(record.numpy()).summary.value)
  assert {"StepTime/best_us", "Metrics/AverageReturn", "Metrics/fitting", "Losses/loss"} <= tags


def test_what_makes_no_sense_is_refused():
  with pytest.raises(PlacementError, match="algorithm is 'dqn'"):
    OneShotConfig(algorithm="dqn")
  with pytest.raises(PlacementError, match="REINFORCE may use a batch once"):
    OneShotConfig(epochs=3)
  with pytest.raises(PlacementError, match="baseline_decay is 1"):
    OneShotConfig(baseline_decay=1.0)

import numpy as np
import pytest
import tensorflow as tf

from placeto_tf.policies.baselines.sequence_placer import PlacerConfig, SequencePlacer

G, F, D = 5, 3, 4


def placer_of(seed=0, **options):
  options.setdefault("hidden", 4)
  placer = SequencePlacer(F, D, PlacerConfig(**options), np.random.default_rng(seed))
  for variable in placer.trainable_variables:  # so that all parts weigh in
    variable.assign(3 * variable)
  return placer


def inputs(b=1, seed=1):
  rng = np.random.default_rng(seed)
  return tf.constant(rng.normal(size=(b, G, F)), tf.float32), tf.ones([b, G, D], tf.bool)


def test_attention_by_hand():
  # Two encoder states, two decoder states, the score matrix swaps the components: the scores of
  # the first, [ln 3, 0] swapped, are [0, ln 3], so that it sees 1/4 of one and 3/4 of the other.
  placer = placer_of(hidden=2)
  placer._score.assign([[0.0, 1.0], [1.0, 0.0]])
  encoded = tf.constant([[[1.0, 0.0], [0.0, 1.0]]])
  hidden = tf.constant([[[np.log(3.0), 0.0], [0.0, 0.0]]], tf.float32)
  context, weights = placer.attention(encoded, hidden)
  np.testing.assert_allclose(weights, [[[0.25, 0.75], [0.5, 0.5]]], rtol=1e-6)
  np.testing.assert_allclose(context, [[[0.25, 0.75], [0.5, 0.5]]], rtol=1e-6)


def test_a_device_depends_on_encoder_states_of_groups_before_and_after():
  """Through attention alone: nothing else of other groups reaches a decision."""
  placer = placer_of(own_scale=0.0)
  features, allowed = inputs()
  devices = tf.zeros([1, G], tf.int32)

  def first_step(features):
    return placer.log_prob(features, allowed, devices).numpy()[0, 0]

  changed = features.numpy()
  changed[0, -1] += 3.0
  assert abs(first_step(tf.constant(changed)) - first_step(features)) > 1e-4


@pytest.mark.parametrize("bidirectional", [False, True])
def test_an_encoder_of_one_direction_does_not_see_what_comes_and_one_of_two_does(bidirectional):
  placer = placer_of(bidirectional=bidirectional)
  features, _ = inputs()
  changed = features.numpy()
  changed[0, -1] += 3.0
  first = [placer.encode(tf.constant(each)).numpy()[0, 0] for each in (features, changed)]
  assert (np.abs(first[0] - first[1]).max() > 1e-4) == bidirectional


@pytest.mark.parametrize("options", [
    {}, {"own_scale": 0.0}, {"bidirectional": True}])
@pytest.mark.parametrize("batch", [1, 3])
def test_the_probability_of_what_was_sampled_is_the_one_it_was_sampled_with(options, batch):
  placer = placer_of(**options)
  features, allowed = inputs(batch)
  noise = tf.constant(np.random.default_rng(2).gumbel(size=(3, G, D)), tf.float32)
  devices = placer.sample(features, allowed, noise)
  # Noise that drew a device is the largest sum with the logits of the step, given those before it.
  scores = np.stack([
      placer.log_prob(features, allowed, tf.concat(
          [devices[:, :i], tf.fill([3, 1], d), devices[:, i + 1:]], axis=1)).numpy()[:, i]
      for i in range(G) for d in range(D)], axis=1).reshape(3, G, D)
  np.testing.assert_allclose(np.exp(scores).sum(axis=-1), 1, rtol=1e-5)
  np.testing.assert_array_equal((scores + noise.numpy()).argmax(axis=-1), devices)


@pytest.mark.parametrize("own_scale", [0.0, 3.0])
def test_a_groups_own_embedding_is_behind_its_decision_where_it_is_asked_for(own_scale):
  """The encoder is cut off: what is left of the group is its own embedding."""
  placer = placer_of(own_scale=own_scale)
  placer._project.assign(tf.zeros_like(placer._project))
  features, allowed = inputs()
  changed = features.numpy()
  changed[0, 2] += 3.0
  devices = tf.zeros([1, G], tf.int32)
  first, second = (placer.log_prob(tf.constant(each), allowed, devices).numpy()[0]
                   for each in (features, changed))
  assert (np.abs(first - second) > 1e-4).tolist() == [g == 2 and own_scale > 0 for g in range(G)]


def test_each_device_is_sampled_in_the_light_of_those_before_it():
  placer = placer_of(own_scale=0.5)
  features, allowed = inputs()
  ones = tf.constant([[0, 0, 0, 0, 0], [3, 0, 0, 0, 0]])
  log_probs = placer.log_prob(features, allowed, ones).numpy()
  assert (np.abs(log_probs[0, 1:3] - log_probs[1, 1:3]) > 1e-5).all()  # fades with distance
  last = tf.constant([[0, 0, 0, 0, 0], [0, 0, 0, 0, 3]])
  log_probs = placer.log_prob(features, allowed, last).numpy()
  np.testing.assert_allclose(log_probs[0, :-1], log_probs[1, :-1], atol=1e-6)


def test_a_device_that_is_masked_is_never_sampled_and_one_that_is_left_is_certain():
  placer = placer_of()
  features, _ = inputs()
  allowed = np.ones((1, G, D), dtype=bool)
  allowed[0, 1] = [False, True, False, False]
  allowed[0, 3, 2:] = False
  noise = tf.constant(np.random.default_rng(2).gumbel(size=(50, G, D)), tf.float32)
  devices = placer.sample(features, tf.constant(allowed), noise).numpy()
  log_probs = placer.log_prob(features, tf.constant(allowed), tf.constant(devices)).numpy()
  assert (devices[:, 1] == 1).all() and set(devices[:, 3]) == {0, 1}
  assert (log_probs[:, 1] == 0).all() and (log_probs[:, 3] < 0).all()

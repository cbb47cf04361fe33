"""Training steps of all the kinds that replicas once computed something else for, or refused.

Each construct builds a step in the default graph, with a free batch unless it says otherwise, and
returns the tensors that are fetched besides the train op, which is named "train".
"""

import inspect
import zlib

import numpy as np
import tensorflow as tf

from placeto_tf.replication.batches import ReplicaSource

v1 = tf.compat.v1
CONSTRUCTS = {}
SAMPLING = set()  # whose results differ from run to run
OWN = set()  # that keep each replica's statistics
REFUSED = {}  # what is said of an op


def construct(function):
  """Adds a construct; one of `x` and `y` is given placeholders of examples and their targets."""
  takes_inputs = bool(inspect.signature(function).parameters)
  CONSTRUCTS[function.__name__] = (lambda: function(*inputs())) if takes_inputs else function
  return function


def source(name, batch, **options):
  """The `ReplicaSource` of a construct at a batch; its op "init_all" initializes all variables."""
  with tf.Graph().as_default() as graph:
    v1.set_random_seed(3)
    fetches = CONSTRUCTS[name]()
    v1.variables_initializer([*v1.global_variables(), *v1.local_variables()], name="init_all")
  names = ["train", *dict.fromkeys(each.name for each in fetches)]
  return ReplicaSource(graph, {"fetches": names, "batch_size": batch}, **options)


def samples(function):
  SAMPLING.add(function.__name__)
  return construct(function)


def own_statistics(function):
  OWN.add(function.__name__)
  return construct(function)


def refused(why):
  def add(function):
    REFUSED[function.__name__] = why
    return construct(function)

  return add


def old_control_flow(function):
  """Adds a construct with the loops, branches and arrays of TensorFlow 1."""

  def build():
    v1.disable_control_flow_v2()
    try:
      return CONSTRUCTS[function.__name__]()
    finally:
      v1.enable_control_flow_v2()

  CONSTRUCTS[f"{function.__name__}_of_old_control_flow"] = build
  return function


def variable(name, shape, value=None, dtype=tf.float32, trainable=True, resource=True):
  """A variable that begins with the same numbers in every graph."""
  generator = np.random.default_rng(zlib.crc32(name.encode()))
  start = generator.normal(size=shape, scale=0.4) if value is None else np.full(shape, value)
  return v1.get_variable(
      name, initializer=tf.constant(start, dtype), use_resource=resource, trainable=trainable)


def kept(name, shape, value=0.0, dtype=tf.float32):
  """A variable that no optimizer changes."""
  return variable(name, shape, value, dtype, trainable=False)


def inputs(batch=None, dtype=tf.float32):
  return (v1.placeholder(dtype, [batch, 5], name="x"), v1.placeholder(dtype, [batch, 3], name="y"))


def labelled_inputs():
  return (v1.placeholder(tf.float32, [None, 5], name="x"),
          v1.placeholder(tf.int32, [None], name="labels"))


def token_inputs():
  return (v1.placeholder(tf.int32, [None, 4], name="ids"),
          v1.placeholder(tf.float32, [None, 3], name="y"))


def network(x, resource=True):
  w, b = (variable(name, shape, dtype=x.dtype, resource=resource)
          for name, shape in (("w", [5, 7]), ("b", [7])))
  hidden = tf.nn.relu(x @ w + b)
  return hidden @ variable("v", [7, 3], dtype=x.dtype, resource=resource)


def square_error(predicted, y):
  return tf.reduce_mean(tf.square(predicted - y))


def by_example(predicted, y):
  return tf.reduce_mean(tf.square(predicted - y), axis=1)


def finish(loss, *updates, optimizer=None, fetches=()):
  """The train op, after which `updates` have been made too."""
  optimizer = optimizer or v1.train.MomentumOptimizer(0.1, 0.9)
  return [*stepped(loss, optimizer.minimize(loss), *updates), *fetches]


def stepped(loss, *steps):
  """The train op is all of these steps."""
  with tf.control_dependencies(steps):
    tf.no_op(name="train")
  return [tf.identity(loss, name="loss")]


def applied(loss, change):
  """The train op applies what is made of the gradients."""
  optimizer = descent(0.1)
  gradients, weights = zip(*optimizer.compute_gradients(loss))
  optimizer.apply_gradients(zip(change(gradients), weights), name="train")
  return [tf.identity(loss, name="loss")]


def descent(rate):
  return v1.train.GradientDescentOptimizer(rate)


class Cell:
  """A gated cell in the form that TensorFlow 1 takes."""

  def __init__(self, w, u):
    self._w, self._u = w, u
    self.output_size = self.state_size = int(u.shape[0])

  def zero_state(self, batch_size, dtype):
    return tf.zeros([batch_size, self.state_size], dtype)

  def __call__(self, x, state, scope=None):
    mixed = tf.matmul(x, self._w) + tf.matmul(state, self._u)
    gate = tf.sigmoid(mixed)
    state = gate * tf.tanh(mixed) + (1.0 - gate) * state
    return tf.tanh(state), state


def batch_size(x):
  return tf.cast(tf.shape(x)[0], tf.float32)


def loss(function):
  """A construct by its loss, of the examples, their targets and what a network predicts."""
  def step():
    x, y = inputs()
    return finish(function(x, y, network(x)))

  step.__name__ = function.__name__
  return construct(step)


# Losses: of the examples, their targets, and what a network predicts.


LOSSES = {
    "mean_loss": lambda x, y, p: square_error(p, y),
    "sum_loss": lambda x, y, p: tf.reduce_sum(tf.square(p - y)) * 0.01,
    "sum_divided_by_a_constant": lambda x, y, p: tf.reduce_sum(tf.square(p - y)) / 64.0,
    "sum_divided_by_the_number_of_examples": lambda x, y, p: (
        tf.reduce_sum(tf.square(p - y)) / batch_size(x)),
    "sums_and_means_together": lambda x, y, p: (
        0.01 * tf.reduce_sum(tf.square(p - y)) + tf.reduce_mean(tf.abs(p))
        + 0.01 * tf.nn.l2_loss(p) + 0.1 * tf.reduce_max(p)),
    "largest_error": lambda x, y, p: tf.reduce_max(by_example(p, y)),
    "log_of_a_sum_of_exponents": lambda x, y, p: tf.reduce_logsumexp(by_example(p, y)),
    "weight_decay": lambda x, y, p: (
        square_error(p, y) + 0.01 * sum(map(tf.nn.l2_loss, v1.trainable_variables()))),
    "boolean_mask": lambda x, y, p: tf.reduce_mean(tf.boolean_mask(by_example(p, y), x[:, 0] > 0)),
    "root_of_the_mean": lambda x, y, p: tf.sqrt(square_error(p, y)),
    "norm_of_the_errors": lambda x, y, p: tf.norm(p - y) * 0.1,
    "softmax_over_the_batch": lambda x, y, p: (
        tf.reduce_sum(tf.nn.softmax(p[:, 0], axis=0) * by_example(p, y))),
    "running_sum_over_the_batch": lambda x, y, p: (
        tf.reduce_mean(tf.square(tf.cumsum(p, 0) - y)) * 0.1),
    "hardest_examples": lambda x, y, p: tf.reduce_mean(tf.nn.top_k(by_example(p, y), 3)[0]),
    "examples_in_reverse": lambda x, y, p: (
        square_error(p, y) + 0.1 * square_error(p, tf.reverse(p, [0]))),
    "neighbours": lambda x, y, p: (
        square_error(p, y) + 0.1 * tf.reduce_mean(tf.square(p[1:] - p[:-1]))),
    "examples_moved_by_one": lambda x, y, p: (
        square_error(p, 0.4 * y + 0.6 * tf.concat([y[1:], y[:1]], 0))),
    "branch_by_all_examples": lambda x, y, p: v1.cond(
        tf.reduce_all(tf.abs(x) < 1.5), lambda: square_error(p, y),
        lambda: 0.3 * tf.reduce_mean(tf.abs(p - y))),
    "branch_by_the_mean": lambda x, y, p: v1.cond(
        tf.reduce_mean(x) > 0, lambda: square_error(p, y), lambda: tf.reduce_mean(tf.abs(p))),
    "rows_that_where_finds": lambda x, y, p: tf.reduce_sum(
        tf.gather(by_example(p, y), tf.reshape(tf.where(x[:, 0] > 0), [-1]))) * 0.1,
    "weighted_examples": lambda x, y, p: v1.losses.compute_weighted_loss(
        by_example(p, y), tf.abs(v1.placeholder(tf.float32, [None], name="weights"))),
    "variance_of_predictions": lambda x, y, p: square_error(p, y) + tf.reduce_mean(
        tf.nn.relu(1 - tf.sqrt(tf.nn.moments(p, [0])[1] + 1e-4))),
    "negatives_of_the_batch": lambda x, y, p: tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels=tf.range(tf.shape(x)[0]), logits=tf.matmul(p, y, transpose_b=True))),
    "similarities_against_an_identity": lambda x, y, p: tf.reduce_mean(
        tf.square(tf.matmul(p, y, transpose_b=True) - tf.eye(tf.shape(x)[0]))),
    "distances_of_all_pairs": lambda x, y, p: tf.reduce_mean(tf.reduce_sum(
        tf.square(tf.expand_dims(p, 0) - tf.expand_dims(y, 1)), 2)) * 0.1,
    "weights_by_position": lambda x, y, p: tf.reduce_mean(
        by_example(p, y) * tf.cast(tf.range(tf.shape(x)[0]), tf.float32)),
    "slots_that_are_no_example_s_own": lambda x, y, p: tf.reduce_mean(tf.square(
        tf.gather(tf.reshape(p, [-1]), tf.range(tf.shape(x)[0]) * 2) - y[:, 0])),
    "a_quarter_of_the_examples": lambda x, y, p: tf.reduce_mean(
        tf.nn.top_k(by_example(p, y), tf.shape(x)[0] // 4)[0]),
    "ten_examples_or_fewer": lambda x, y, p: tf.reduce_mean(
        tf.nn.top_k(by_example(p, y), tf.minimum(tf.shape(x)[0], 10))[0]),
    "row_that_the_number_of_examples_chooses": lambda x, y, p: (
        square_error(p + variable("rows", [40, 3])[tf.shape(x)[0]], y)),
    "first_half_by_positions": lambda x, y, p: square_error(
        *(tf.gather(each, tf.range(tf.shape(x)[0] // 2)) for each in (p, y))),
    "range_of_all_values": lambda x, y, p: square_error(tf.quantization.quantize_and_dequantize_v2(
        p, -1.0, 1.0, range_given=False, num_bits=4), y),
}
for _name, _loss in LOSSES.items():
  _loss.__name__ = _name
  loss(_loss)


@construct
def mean_loss_in_float64():
  x, y = inputs(dtype=tf.float64)
  return finish(square_error(network(x), y))


@construct
def mean_loss_of_reference_variables(x, y):
  return finish(square_error(network(x, resource=False), y))


def _masked(x, y):
  mask = tf.cast(x[:, 0] > 0, tf.float32)
  errors = by_example(network(x), y)
  return mask, errors, tf.reduce_sum(errors * mask) / tf.reduce_sum(mask)


@construct
def masked():
  return finish(_masked(*inputs())[2])


@construct
def masked_beside_a_metric():
  mask, errors, loss = _masked(*inputs())
  total, count = kept("total", []), kept("count", [])
  return finish(loss, v1.assign_add(total, tf.reduce_sum(errors * mask)),
                v1.assign_add(count, tf.cast(tf.size(errors), tf.float32)))


@construct
def masked_beside_a_moving_mean():
  loss = _masked(*inputs())[2]
  mean = kept("mean", [])
  return finish(loss, v1.assign(mean, 0.9 * mean + 0.1 * loss))


@loss
def masked_with_no_nan(x, y, p):
  mask = tf.cast(x[:, 0] > 0.5, tf.float32)
  return tf.math.divide_no_nan(tf.reduce_sum(by_example(p, y) * mask), tf.reduce_sum(mask))


@loss
def masked_in_two_ways(x, y, p):
  ones, others = (tf.cast(test, tf.float32) for test in (x[:, 0] > 0, x[:, 1] > 0))
  return sum(tf.reduce_sum(by_example(p, y) * m) / (1 + tf.reduce_sum(m)) for m in (ones, others))


@loss
def normalized_targets(x, y, p):
  mean, variance = tf.nn.moments(y, [0])
  return square_error(p, (y - mean) / tf.sqrt(variance + 1e-3))


@construct
def normalized_targets_with_kept_moments(x, y):
  mean, variance = tf.nn.moments(y, [0])
  means, variances = kept("means", [3]), kept("variances", [3])
  return finish(square_error(network(x), (y - mean) / tf.sqrt(variance + 1e-3)),
                v1.assign(means, 0.9 * means + 0.1 * mean),
                v1.assign(variances, 0.9 * variances + 0.1 * variance))


@construct
def loss_over_a_kept_spread(x, y):
  errors = by_example(network(x), y)
  mean, variance = tf.nn.moments(errors, [0])
  means, variances = kept("means", []), kept("variances", [])
  return finish(tf.reduce_mean(tf.square(errors - 0.5 * mean)) / tf.sqrt(variance + 1e-3),
                v1.assign(means, 0.9 * means + 0.1 * mean),
                v1.assign(variances, 0.9 * variances + 0.1 * variance))


@construct
def huber_with_a_threshold_of_the_batch(x, y):
  error = tf.abs(network(x) - y)
  middle = tf.reduce_mean(error)
  threshold = kept("threshold", [], 1.0)
  return finish(tf.reduce_mean(tf.where(
      error < middle, 0.5 * tf.square(error), middle * (error - 0.5 * middle))),
                v1.assign(threshold, 0.9 * threshold + 0.1 * middle))


@loss
def weights_by_class_of_the_batch(x, y, p):
  positive = tf.cast(y > 0, tf.float32)
  share = tf.reduce_mean(positive, axis=0)
  errors = tf.nn.sigmoid_cross_entropy_with_logits(labels=positive, logits=p)
  return tf.reduce_mean(errors * (positive / (share + 0.1) + (1 - positive)))


@loss
def covariance_of_predictions(x, y, p):
  centred = p - tf.reduce_mean(p, 0)
  covariance = tf.matmul(centred, centred, transpose_a=True) / (batch_size(x) - 1)
  return square_error(p, y) + tf.reduce_sum(tf.square(covariance))


@loss
def correlation(x, y, p):
  p, q = (each - tf.reduce_mean(each, 0) for each in (p, y))
  return -tf.reduce_mean(tf.reduce_sum(p * q, 0) / (
      1e-3 + tf.sqrt(tf.reduce_sum(p * p, 0) * tf.reduce_sum(q * q, 0))))


@loss
def dice(x, y, p):
  p, t = tf.sigmoid(p), tf.cast(y > 0, tf.float32)
  return 1 - 2 * tf.reduce_sum(p * t) / (tf.reduce_sum(p) + tf.reduce_sum(t) + 1e-3)


# Examples that meet.


@loss
def hard_negatives_by_flat_index(x, y, p):
  scores = tf.matmul(p, y, transpose_b=True)
  columns = tf.math.top_k(scores + 1e3 * tf.eye(tf.shape(scores)[0]), 3, sorted=False)[1]
  rows = tf.tile(tf.range(tf.shape(columns)[0])[:, None], [1, tf.shape(columns)[1]])
  flat = tf.reshape(rows * tf.shape(scores)[1] + columns, [-1])
  found = tf.reshape(tf.gather(tf.reshape(scores, [-1]), flat), tf.shape(columns))
  return tf.reduce_mean(tf.reduce_logsumexp(found, 1) - tf.linalg.diag_part(scores))


@loss
def hardest_negative_of_each_row(x, y, p):
  scores = tf.matmul(p, y, transpose_b=True)
  hardest = tf.argmax(scores - 1e3 * tf.eye(tf.shape(scores)[0]), 1)
  gaps = tf.gather(scores, hardest, batch_dims=1) - tf.linalg.diag_part(scores)
  return tf.reduce_mean(tf.nn.relu(1.0 + gaps))


@loss
def scores_summed_by_flat_index(x, y, p):
  scores, batch = tf.matmul(p, y, transpose_b=True), tf.shape(x)[0]
  columns = tf.math.top_k(scores, 2)[1]
  flat = tf.reshape(tf.range(batch)[:, None] * batch + columns, [-1])
  summed = tf.math.unsorted_segment_sum(
      tf.reshape(scores, [-1])[:tf.size(columns)], flat, batch * batch)
  return tf.reduce_mean(tf.reshape(summed, [batch, batch]) * scores)


@loss
def rows_counted_by_a_linspace(x, y, p):
  scores, batch = tf.matmul(p, y, transpose_b=True), tf.shape(x)[0]
  last = tf.cast(batch - 1, tf.float32)
  rows = tf.cast(tf.round(tf.linspace(0.0, last, batch)), tf.int32)
  return tf.reduce_mean(tf.square(tf.gather(tf.reshape(scores, [-1]), rows * batch + 1)))


@construct
def probabilities_of_labels():
  x, labels = labelled_inputs()
  chosen = tf.gather_nd(
      tf.nn.log_softmax(network(x)), tf.stack([tf.range(tf.shape(x)[0]), labels], 1))
  return finish(-tf.reduce_mean(chosen))


@construct
def examples_in_reverse_by_a_slice(x, y):
  return finish(square_error(network(0.3 * x + 0.7 * x[::-1]), 0.3 * y + 0.7 * y[::-1]))


@construct
def slots_of_labels():
  x, labels = labelled_inputs()
  flat = tf.reshape(tf.nn.log_softmax(network(x)), [-1])
  return finish(-tf.reduce_mean(tf.gather(flat, tf.range(tf.shape(x)[0]) * 3 + labels)))


@loss
def slots_of_the_next_example(x, y, p):
  columns = tf.cast(tf.floor(tf.sigmoid(4.0 * x[:, 0]) * 2.9), tf.int32) * 2  # 0, 2 or 4, of 3
  rows = tf.range(tf.shape(x)[0])
  columns = tf.minimum(columns, 3 * (tf.shape(x)[0] - rows) - 1)
  return tf.reduce_mean(tf.square(tf.gather(tf.reshape(p, [-1]), rows * 3 + columns) - y[:, 0]))


@loss
def sums_by_position(x, y, p):
  sums = tf.math.unsorted_segment_sum(p, tf.range(tf.shape(x)[0]), 40)
  weights = tf.reshape(tf.linspace(0.1, 2.0, 40), [40, 1])
  return 0.01 * tf.reduce_sum(sums * weights) + square_error(p, y)


@loss
def positions_of_several_numbers(x, y, p):
  n = tf.shape(x)[0]
  tiled = tf.tile(tf.range(n)[:, None], [1, 3])
  repeated = tf.reshape(tf.repeat(tf.range(n), 3), [-1, 3])
  weights = tf.cast(tiled * tiled + repeated, tf.float32)
  return 0.01 * tf.reduce_mean(tf.square(p - y) * weights)


@refused("combines examples of the batch with one another")
@loss
def other_orders_of_twice_the_batch(x, y, p):
  return 0.01 * tf.reduce_mean(tf.square(tf.matmul(
      tf.concat([p, 2 * p], 0), tf.repeat(y, 2, axis=0), transpose_a=True)))


@loss
def order_that_is_inverted(x, y, p):
  order = tf.argsort(x[:, 0])
  ranks = tf.cast(tf.math.invert_permutation(order), tf.float32)
  return 0.1 * tf.reduce_mean(by_example(p, y) * ranks)


@construct
def hardest_of_the_batch():
  """Triplets: the farthest of the same label and the nearest of another."""
  x, labels = labelled_inputs()
  p = network(x)
  squares = tf.reduce_sum(tf.square(p), 1)
  gaps = squares[:, None] - 2 * tf.matmul(p, p, transpose_b=True) + squares[None, :]
  distances = tf.sqrt(tf.maximum(gaps, 0.0) + 1e-3)
  same = tf.cast(tf.equal(labels[:, None], labels[None, :]), tf.float32)
  others = 1 - tf.eye(tf.shape(labels)[0])
  return finish(tf.reduce_mean(tf.nn.relu(
      1.0 + tf.reduce_max(distances * same * others, 1)
      - tf.reduce_min(distances + 100.0 * same, 1))))


@construct
def densities_of_all_pairs(x, y):
  mean, log_variance = tf.split(x @ variable("w", [5, 6]), 2, 1)
  z = mean + tf.exp(0.5 * log_variance) * tf.sin(7 * x[:, :3])
  pairs = tf.square(z[:, None] - mean[None]) * tf.exp(-log_variance[None]) + log_variance[None]
  return finish(square_error(z, y) + tf.reduce_mean(
      tf.reduce_logsumexp(-0.5 * tf.reduce_sum(pairs, 2), 1)))


@construct
def kernel_of_all_pairs(x, y):
  p = x @ variable("w", [5, 2])
  kernel = tf.exp(-tf.reduce_sum(tf.square(p[:, None] - p[None]), -1))
  factor = tf.linalg.cholesky(kernel + 0.5 * tf.eye(tf.shape(x)[0]))
  return finish(tf.reduce_sum(y * tf.linalg.cholesky_solve(factor, y)) / batch_size(x) + 2 * (
      tf.reduce_mean(tf.math.log(tf.linalg.diag_part(factor)))))


@construct
def experts_of_the_examples_they_are_given(x, y):
  gate = tf.nn.softmax(x @ variable("gate", [5, 2]))
  chosen = tf.cast(tf.argmax(gate, 1), tf.int32)
  places = tf.dynamic_partition(tf.range(tf.shape(x)[0]), chosen, 2)
  found = tf.dynamic_stitch(places, [
      part @ variable(f"expert_{i}", [5, 3])
      for i, part in enumerate(tf.dynamic_partition(x, chosen, 2))])
  return finish(square_error(found * tf.reduce_max(gate, 1, keepdims=True), y))


@refused("computes with dimensions of the batch that are not known")
def sequences_as_long_as_the_longest():
  x = v1.placeholder(tf.float32, [None, 4, 5], name="x")
  y = v1.placeholder(tf.float32, [None, 3], name="y")
  labels = v1.placeholder(tf.int32, [None], name="labels")
  mask = tf.sequence_mask(labels + 1, dtype=tf.float32)
  hidden = (x @ variable("w", [5, 3]))[:, :tf.reduce_max(labels + 1)]
  return finish(square_error(tf.reduce_sum(hidden * mask[:, :, None], 1) / tf.reduce_sum(
      mask, 1, keepdims=True), y))


# The number of examples.


@loss
def number_of_pairs(x, y, p):
  n = tf.shape(x)[0]
  scores = tf.matmul(p, p, transpose_b=True) * (1 - tf.eye(n))
  return square_error(p, y) + 0.1 * tf.reduce_sum(scores) / tf.cast(n * (n - 1), tf.float32)


@construct
def rate_by_the_number_of_examples(x, y):
  return finish(square_error(network(x), y), optimizer=descent(0.01 * batch_size(x)))


@construct
def rate_by_the_root_of_the_number(x, y):
  return finish(square_error(network(x), y), optimizer=descent(0.01 * tf.sqrt(batch_size(x) + 1)))


@construct
def decay_by_examples_seen(x, y):
  seen = kept("seen", [])
  update = v1.assign_add(seen, batch_size(x))
  with tf.control_dependencies([update]):
    rate = 0.1 / (1 + 0.01 * seen.read_value())
  return finish(square_error(network(x), y), optimizer=descent(rate))


@construct
def counters_of_whole_numbers(x, y):
  examples = kept("examples", [], 0, tf.int32)
  positive = kept("positive", [], 0, tf.int32)
  return finish(square_error(network(x), y), v1.assign_add(examples, tf.shape(x)[0]),
                v1.assign_add(positive, tf.reduce_sum(tf.cast(x[:, 0] > 0, tf.int32))))


@construct
def rate_that_is_fed(x, y):
  rate = v1.placeholder(tf.float32, [], name="rate")
  return finish(square_error(network(x), y), optimizer=descent(0.1 * rate))


@construct
def rate_that_decays_with_the_step(x, y):
  step = v1.train.get_or_create_global_step()
  rate = v1.train.exponential_decay(0.1, step, 2, 0.5)
  loss = square_error(network(x), y)
  descent(rate).minimize(loss, step, name="train")
  return [tf.identity(loss, name="loss")]


# Writes.


@construct
def metrics(x, y):
  p = network(x)
  labels, found = (tf.argmax(each, 1) for each in (y, p))
  accuracy, accuracy_update = v1.metrics.accuracy(labels, found)
  _, error_update = v1.metrics.root_mean_squared_error(y, p)
  del accuracy
  return finish(square_error(p, y), fetches=[accuracy_update, error_update])


@construct
def area_under_the_curve(x, y):
  p = tf.sigmoid(network(x))
  update = v1.metrics.auc(tf.cast(y > 0, tf.float32), p, num_thresholds=7)[1]
  return finish(square_error(p, y), update)


@construct
def confusion(x, y):
  p = network(x)
  counts = kept("counts", [3, 3], 0, tf.int32)
  found = tf.math.confusion_matrix(tf.argmax(y, 1), tf.argmax(p, 1), 3)
  return finish(square_error(p, y), v1.assign_add(counts, found))


@construct
def writes_of_rows(x, y):
  rows = tf.cast(3 * tf.abs(x[:, 0]), tf.int32) % 5
  last, product, largest = kept("last", [5]), kept("product", [5], 1.0), kept("largest", [5], 1.0)
  return finish(square_error(network(x), y), v1.scatter_update(last, rows, x[:, 1]),
                v1.scatter_mul(product, rows, x[:, 1]), v1.scatter_max(largest, rows, x[:, 2]))


@construct
def sums_of_rows(x, y):
  rows = tf.cast(3 * tf.abs(x[:, 0]), tf.int32) % 5
  sums, counts = kept("sums", [5, 3]), kept("counts", [5])
  return finish(square_error(network(x), y), v1.scatter_add(sums, rows, y),
                v1.scatter_add(counts, rows, tf.ones_like(x[:, 0])))


@construct
def largest_value_seen(x, y):
  largest, smallest = kept("largest", [5]), kept("smallest", [])
  return finish(square_error(network(x), y),
                v1.assign(largest, tf.maximum(largest, tf.reduce_max(x, 0))),
                v1.assign(smallest, tf.minimum(smallest, tf.reduce_min(x))))


@construct
def moving_means_of_weights(x, y):
  loss = square_error(network(x), y)
  step = v1.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
  with tf.control_dependencies([step]):
    averages = tf.train.ExponentialMovingAverage(0.9)
    update = averages.apply(v1.trainable_variables())
  return stepped(loss, update)


@construct
def gradients_of_two_steps_together(x, y):
  loss = square_error(network(x), y)
  weights = v1.trainable_variables()
  sums = [kept(f"{each.op.name}_sum", each.shape.as_list()) for each in weights]
  step = kept("steps", [], 0, tf.int32)
  added = [v1.assign_add(s, g) for s, g in zip(sums, tf.gradients(loss, weights))]
  with tf.control_dependencies([*added, v1.assign_add(step, 1)]):
    apply = tf.cast(tf.equal(step.read_value() % 2, 0), tf.float32)
    new = [v1.assign_sub(w, 0.1 * apply * s.read_value()) for w, s in zip(weights, sums)]
  with tf.control_dependencies(new):
    cleared = [v1.assign(s, (1 - apply) * s.read_value()) for s in sums]
  return stepped(loss, *cleared)


@construct
def centres_of_labels():
  x, labels = labelled_inputs()
  p, centres = network(x), kept("centres", [3, 3], 0.1)
  _, where, counts = tf.unique_with_counts(labels)
  own = tf.gather(centres, labels)
  times = tf.cast(tf.gather(counts, where), tf.float32)[:, None]
  return finish(0.1 * tf.nn.l2_loss(p - own), v1.scatter_sub(
      centres, labels, 0.5 * (own - p) / (1 + times)))


@construct
def memory_that_the_loss_reads(x, y):
  rows = v1.placeholder(tf.int32, [None], name="rows")
  memory = kept("memory", [11, 3], 0.2)
  found = tf.nn.softmax(network(x))
  old = tf.gather(memory, rows)
  with tf.control_dependencies([old]):
    update = v1.scatter_update(memory, rows, 0.5 * old + 0.5 * found)
  return finish(square_error(found, y) + tf.reduce_mean(
      tf.square(found - tf.stop_gradient(old))), update)


@construct
def queue_of_keys(x, y):
  query, key = tf.math.l2_normalize(network(x), 1), tf.math.l2_normalize(y, 1)
  queue, first = kept("queue", [40, 3], 0.2), kept("first", [], 0, tf.int32)
  loss = tf.reduce_mean(tf.matmul(query, queue.read_value(), transpose_b=True)) - (
      tf.reduce_mean(query * key))
  with tf.control_dependencies([loss]):
    written = v1.scatter_update(
        queue, (first.read_value() + tf.range(tf.shape(x)[0])) % 40, key)
  with tf.control_dependencies([written]):
    moved = v1.assign(first, (first + tf.shape(x)[0]) % 40)
  return finish(loss, written, moved)


# Branches and loops.


@construct
def optimizer_in_a_branch(x, y):
  loss = square_error(network(x), y)
  scale = kept("scale", [], 8.0)
  weights = v1.trainable_variables()
  gradients = [gradient / scale for gradient in tf.gradients(loss * scale, weights)]
  optimizer = v1.train.MomentumOptimizer(0.1, 0.9)

  def step():
    with tf.control_dependencies([optimizer.apply_gradients(zip(gradients, weights))]):
      return v1.assign(scale, 2 * scale)

  finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(each)) for each in gradients])
  small = tf.linalg.global_norm(gradients) < 1.0
  return stepped(loss, tf.cond(
      tf.logical_and(finite, small), step, lambda: v1.assign(scale, scale / 2)))


@refused("gives now one thing of the batch and now another")
@loss
def one_of_three_branches(x, y, p):
  chosen = tf.cast(20 * tf.abs(tf.reduce_mean(x)), tf.int32) % 3
  return tf.switch_case(chosen, [
      lambda: square_error(p, y), lambda: tf.reduce_mean(tf.abs(p - y)),
      lambda: 0.01 * tf.reduce_sum(tf.square(p))])


@construct
def loss_kept_in_a_branch_that_is_not_taken(x, y):
  loss, late, steps = square_error(network(x), y), kept("late", []), kept("steps", [])
  return finish(loss, v1.assign_add(steps, 1.0), tf.cond(
      steps > 1000.0, lambda: v1.assign(late, loss), lambda: tf.identity(late)))


@old_control_flow
@loss
def branch(x, y, p):
  return tf.cond(tf.reduce_any(x > 2.0), lambda: square_error(p, y),
                 lambda: tf.reduce_mean(tf.abs(p - y)))


@construct
def step_skipped_by_a_norm(x, y):
  loss = square_error(network(x), y)
  optimizer = v1.train.MomentumOptimizer(0.1, 0.9)
  pairs = optimizer.compute_gradients(loss)
  norm = tf.linalg.global_norm([gradient for gradient, _ in pairs])
  keep = tf.cast(norm < 1.0, tf.float32)
  optimizer.apply_gradients([(keep * g, v) for g, v in pairs], name="train")
  return [tf.identity(loss, name="loss"), norm]


@old_control_flow
@loss
def loop_until_the_maximum_is_small(x, y, p):
  found = tf.while_loop(lambda a: tf.reduce_max(tf.abs(a)) > 0.5, lambda a: [a * 0.7],
                        [p], maximum_iterations=20)[0]
  return square_error(found, y)


@old_control_flow
@loss
def loop_over_time(x, y, p):
  w = variable("step", [3, 3])
  found = tf.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, tf.tanh(a @ w)),
                        (tf.constant(0), p), maximum_iterations=3)[1]
  return square_error(found, y)


@old_control_flow
@construct
def attention_over_sequences_of_their_own_lengths():
  x, y = (v1.placeholder(tf.float32, [None, *shape], name=name) for name, shape in (
      ("x", [6, 5]), ("y", [3])))
  lengths = v1.placeholder(tf.int32, [None], name="labels")
  states = tf.concat(v1.nn.bidirectional_dynamic_rnn(
      *(Cell(variable(f"w_{i}", [5, 4]), variable(f"u_{i}", [4, 4])) for i in "ab"), x, lengths,
      dtype=tf.float32)[0], -1)
  weights = tf.nn.softmax(tf.einsum("btd,d->bt", states, variable("q", [8])))
  return finish(square_error(
      tf.reduce_sum(states * weights[:, :, None], 1) @ variable("w", [8, 3]), y))


@old_control_flow
@construct
def sums_of_rows_looked_up_in_a_loop():
  ids, y = token_inputs()
  read, rows = tf.TensorArray(tf.int32, 4).unstack(tf.transpose(ids)), variable("rows", [12, 3])
  found = tf.while_loop(lambda i, _: i < 4, lambda i, s: (i + 1, s + tf.gather(
      rows, read.read(i))), (0, tf.zeros_like(y)))[1]
  return finish(square_error(found, y))


@old_control_flow
@construct
def decoder_that_looks_up_rows_in_its_loop():
  x, y = (v1.placeholder(tf.float32, [None, size], name=name) for name, size in (
      ("x", 4), ("y", 3)))
  ids = tf.transpose(v1.placeholder(tf.int32, [None, 5], name="labels"))
  rows, w = variable("rows", [12, 4]), variable("step", [4, 4])

  def step(i, state, written):
    state = tf.tanh(state @ w + tf.nn.embedding_lookup(rows, ids[i]))
    return i + 1, state, written.write(i, state)

  _, state, written = tf.while_loop(
      lambda i, *_: i < 5, step, (0, x, tf.TensorArray(tf.float32, 5)), maximum_iterations=5)
  states = tf.reduce_mean(written.stack(), 0) + state
  return finish(square_error(states @ variable("w", [4, 3]), y))


@old_control_flow
@construct
def conditional_random_field_by_a_scan():
  x = v1.placeholder(tf.float32, [None, 6, 5], name="x")
  labels = v1.placeholder(tf.int32, [None, 6], name="labels")
  scores = tf.reshape(tf.reshape(x, [-1, 5]) @ variable("w", [5, 3]), [-1, 6, 3])
  moves = variable("moves", [3, 3])
  by_step = tf.transpose(scores, [1, 0, 2])
  alphas = tf.scan(
      lambda alpha, score: tf.reduce_logsumexp(alpha[:, :, None] + moves[None], axis=1) + score,
      by_step[1:], initializer=by_step[0])
  of_labels = tf.reduce_sum(scores * tf.one_hot(labels, 3), axis=[1, 2]) + tf.reduce_sum(
      tf.gather(tf.reshape(moves, [-1]), labels[:, :-1] * 3 + labels[:, 1:]), axis=1)
  return finish(tf.reduce_mean(tf.reduce_logsumexp(alphas[-1], axis=1) - of_labels))


@refused("takes the examples of the batch apart")
@loss
def loop_over_the_examples(x, y, p):
  return square_error(tf.scan(lambda a, b: 0.5 * a + b, p), y) * 0.1


# Gradients.


@loss
def penalty_on_the_gradient_of_inputs(x, y, p):
  p = tf.tanh(p)
  slope = tf.gradients(tf.reduce_sum(p), x)[0]
  return square_error(p, y) + tf.reduce_mean(tf.square(tf.norm(slope + 1e-3, axis=1) - 1))


@construct
def penalty_on_the_gradient_of_weights(x, y):
  w = variable("q", [5, 3])
  loss = square_error(tf.tanh(x @ w), y)
  return finish(loss + 0.1 * tf.reduce_sum(tf.square(tf.gradients(loss, w)[0])))


@construct
def clipped_by_the_global_norm(x, y):
  loss = square_error(network(x), y)
  optimizer = v1.train.AdamOptimizer(0.01)
  pairs = optimizer.compute_gradients(loss)
  clipped, norm = tf.clip_by_global_norm([gradient for gradient, _ in pairs], 0.1)
  optimizer.apply_gradients(zip(clipped, [each for _, each in pairs]), name="train")
  return [tf.identity(loss, name="loss"), tf.identity(norm, name="norm")]


@construct
def clipped_by_value(x, y):
  return applied(tf.reduce_sum(tf.square(network(x) - y)), lambda gradients: [
      tf.clip_by_value(each, -0.05, 0.05) for each in gradients])


def rows_of_an_embedding(optimizer):
  """A construct: a table of which an optimizer updates the rows that a batch reads."""
  def step():
    ids, y = token_inputs()
    rows = tf.nn.embedding_lookup(variable("table", [11, 4]), ids)
    p = tf.reshape(rows, [-1, 16]) @ variable("v", [16, 3])
    train = v1.train.MomentumOptimizer(0.05, 0.9) if optimizer == "Momentum" else (
        getattr(v1.train, f"{optimizer}Optimizer")(0.05))
    return finish(0.1 * tf.reduce_sum(tf.square(p - y)), optimizer=train)

  step.__name__ = f"rows_of_an_embedding_by_{optimizer}"
  construct(step)


for _optimizer in ("Momentum", "Adam", "Adagrad", "RMSProp"):
  rows_of_an_embedding(_optimizer)


@construct
def rows_at_positions_of_each_example():
  """As the masked words of BERT."""
  ids, y = token_inputs()
  positions = v1.placeholder(tf.int32, [None, 2], name="labels")
  rows = tf.nn.embedding_lookup(variable("table", [11, 4]), ids)
  picked = tf.reshape(tf.gather(rows, positions, batch_dims=1), [-1, 8])
  return finish(square_error(picked @ variable("v", [8, 3]), y))


@construct
def unique_rows_of_an_embedding():
  ids, y = token_inputs()
  unique, where = tf.unique(tf.reshape(ids, [-1]))
  rows = tf.nn.embedding_lookup(variable("table", [11, 4]), unique)
  return finish(square_error(
      tf.reshape(tf.gather(rows, where), [-1, 16]) @ variable("v", [16, 3]), y))


@construct
def clipped_rows_of_an_embedding():
  ids, y = token_inputs()
  rows = tf.nn.embedding_lookup(variable("table", [11, 4]), ids)
  loss = square_error(tf.reshape(rows, [-1, 16]) @ variable("v", [16, 3]), y)
  return applied(loss, lambda gradients: tf.clip_by_global_norm(gradients, 0.05)[0])


@construct
def two_optimizers(x, y):
  p = network(x)
  critic = tf.tanh(p @ variable("critic", [3, 1]))
  first = v1.train.AdamOptimizer(0.01).minimize(
      square_error(p, y) - 0.1 * tf.reduce_mean(critic), var_list=v1.trainable_variables()[:3])
  second = v1.train.RMSPropOptimizer(0.01).minimize(
      tf.reduce_mean(tf.square(critic - 0.5)), var_list=v1.trainable_variables()[3:])
  return stepped(tf.reduce_mean(critic), first, second)


@construct
def adagrad(x, y):
  return finish(square_error(network(x), y), optimizer=v1.train.AdagradOptimizer(0.1))


@construct
def follow_the_leader(x, y):
  return finish(tf.reduce_sum(tf.square(network(x) - y)),
                optimizer=v1.train.FtrlOptimizer(0.1, l1_regularization_strength=0.01))


# Layers.


@loss
def layer_normalization(x, y, p):
  mean, variance = tf.nn.moments(p, [1], keepdims=True)
  return square_error((p - mean) / tf.sqrt(variance + 1e-3), y)


@construct
def convolution_and_pooling(x, y):
  image = tf.reshape(x @ variable("in", [5, 32]), [-1, 4, 4, 2])
  found = tf.nn.conv2d(image, variable("filter", [3, 3, 2, 3]), 1, "SAME")
  found = tf.nn.max_pool2d(tf.nn.relu(tf.nn.bias_add(found, variable("bias", [3]))), 2, 2, "SAME")
  return finish(square_error(tf.reduce_mean(found, [1, 2]), y))


@construct
def attention(x, y):
  p = tf.reshape(x @ variable("in", [5, 12]), [-1, 4, 3])
  weights = tf.nn.softmax(tf.matmul(p, p, transpose_b=True))
  return finish(square_error(tf.reduce_mean(weights @ p, 1), y))


def _normalized(x):
  h = x @ variable("w", [5, 3])
  mean, variance = tf.nn.moments(h, [0])
  means, variances = kept("means", [3]), kept("variances", [3], 1.0)
  found = tf.nn.batch_normalization(
      h, mean, variance, variable("beta", [3]), variable("gamma", [3]), 1e-3)
  return found, (v1.assign_sub(means, 0.1 * (means - mean)),
                 v1.assign_sub(variances, 0.1 * (variances - variance)))


@own_statistics
def batch_normalization(x, y):
  found, updates = _normalized(x)
  return finish(square_error(found, y), *updates)


@own_statistics
def batch_normalization_and_a_mask(x, y):
  found, updates = _normalized(x)
  mask = tf.cast(x[:, 0] > 0, tf.float32)
  return finish(tf.reduce_sum(by_example(found, y) * mask) / tf.reduce_sum(mask), *updates)


@own_statistics
def fused_batch_normalization(x, y):
  image = tf.reshape(x @ variable("w", [5, 12]), [-1, 2, 2, 3])
  means, variances = kept("means", [3]), kept("variances", [3], 1.0)
  found, mean, variance = v1.nn.fused_batch_norm(
      image, variable("gamma", [3]), variable("beta", [3]), epsilon=1e-3)
  return finish(square_error(tf.reduce_mean(found, [1, 2]), y),
                v1.assign_sub(means, 0.1 * (means - mean)),
                v1.assign_sub(variances, 0.1 * (variances - variance)))


# Draws.


@loss
def divided_by_a_count_or_a_constant(x, y, p):
  """The number of examples in one branch, which no tried batch takes, and a number in the other."""
  count = tf.cond(tf.reduce_max(x) > 1e3, lambda: tf.shape(x)[0], lambda: tf.constant(7))
  return tf.reduce_sum(by_example(p, y)) / tf.cast(count, tf.float32)


@refused("multiplies in a loop by what counts examples")
@loss
def power_of_a_count(x, y, p):
  count = tf.cast(tf.shape(x)[0], tf.float32)
  return square_error(p, y) * tf.while_loop(
      lambda i, power: i < 3, lambda i, power: (i + 1, power * count), (0, 1.0))[1]


@loss
def chosen_by_wide_indices(x, y, p):
  chosen = tf.stack([tf.range(tf.shape(x)[0]), tf.cast(tf.argmax(y, 1), tf.int32)], 1)
  return -tf.reduce_mean(tf.gather_nd(p, tf.cast(chosen, tf.int64)))


@loss
def largest_of_many_draws(x, y, p):
  """Draws below the number of examples, so many that its largest is as good as surely drawn."""
  count = tf.shape(x)[0]
  drawn = tf.random.uniform([count, 500], 0, count, tf.int32)
  return square_error(p, y) * tf.cast(1 + tf.reduce_max(drawn), tf.float32)


@samples
@loss
def dropout(x, y, p):
  return square_error(tf.nn.dropout(p, rate=0.3), y)


@samples
@loss
def dropout_with_a_seed(x, y, p):
  return square_error(tf.nn.dropout(p, rate=0.3, seed=5), y)


@samples
@loss
def dropped_paths(x, y, p):
  """One draw for each example, as in stochastic depth."""
  kept_paths = tf.nn.dropout(p, rate=0.3, noise_shape=[tf.shape(p)[0], 1])
  return square_error(p + kept_paths, y)


@samples
def stateless_dropout(x, y):
  step = kept("steps", [], 0, tf.int32)
  with tf.control_dependencies([v1.assign_add(step, 1)]):
    seed = tf.stack([step.read_value(), 7])
  noise = tf.random.stateless_uniform(tf.shape(x), seed)
  return finish(square_error(network(x * tf.cast(noise > 0.2, tf.float32)), y))


@samples
def noise_on_the_weights(x, y):
  w = variable("w", [5, 3])
  return finish(square_error(x @ (w + 0.1 * tf.random.normal([5, 3])), y))


@samples
def noise_on_the_gradients(x, y):
  return applied(square_error(network(x), y), lambda gradients: [
      each + 0.1 * tf.random.normal(tf.shape(each)) for each in gradients])


@samples
@loss
def rows_that_are_drawn(x, y, p):
  negatives = tf.random.uniform([6], 0, 11, tf.int32)
  rows = tf.nn.embedding_lookup(variable("table", [11, 3]), negatives)
  scores = tf.matmul(p, rows, transpose_b=True)
  return tf.reduce_mean(tf.nn.softplus(scores)) + square_error(network_again(x), y)


@samples
def sampled_softmax_beside_a_sample_that_no_step_needs():
  x = v1.placeholder(tf.float32, [None, 5], name="x")
  labels = v1.placeholder(tf.int64, [None, 1], name="labels")
  p = network(x)
  v1.multinomial(p, 1)
  return finish(tf.reduce_mean(tf.nn.sampled_softmax_loss(
      variable("classes", [11, 3]), variable("biases", [11]), labels, p, 3, 11)))


def network_again(x):
  return x @ variable("direct", [5, 3])


@loss
def equal_rows_taken_apart(x, y, p):
  one, other = tf.split(tf.fill([2 * tf.shape(x)[0], 3], 0.5), 2)
  return square_error(p * one, y * other)


@samples
@loss
def a_layer_dropped_for_all_examples(x, y, p):
  keep = tf.cast(tf.random.uniform([]) > 0.5, tf.float32)
  return square_error(p * keep + network_again(x), y)


@samples
def generator_and_critic():
  x = v1.placeholder(tf.float32, [None, 5], name="x")
  noise = tf.random.normal([tf.shape(x)[0], 4])
  made = tf.tanh(noise @ variable("generator", [4, 5]))
  critic = variable("critic", [5, 1])
  real, false = x @ critic, made @ critic
  first = v1.train.AdamOptimizer(0.01).minimize(
      -tf.reduce_mean(false), var_list=v1.trainable_variables()[:1])
  second = v1.train.AdamOptimizer(0.01).minimize(
      tf.reduce_mean(false) - tf.reduce_mean(real), var_list=v1.trainable_variables()[1:])
  return stepped(tf.reduce_mean(real), first, second)


@refused("shuffles the examples of the batch")
@loss
def shuffled_batch(x, y, p):
  return square_error(p, tf.random.shuffle(y))


# A batch that is fixed.


@construct
def fixed_batch():
  x, y = inputs(12)
  return finish(square_error(network(x), y))


@construct
def fixed_batch_in_shapes():
  x, y = inputs(12)
  p = tf.reshape(network(x), [12, 3, 1]) + tf.zeros([12, 3, 1])
  return finish(0.05 * tf.reduce_sum(tf.square(tf.reshape(p, [12, 3]) - y)))


@construct
def fixed_batch_in_numbers():
  x, y = inputs(12)
  weights = tf.constant(np.linspace(0.5, 1.5, 12), tf.float32)
  return finish(tf.reduce_sum(by_example(network(x), y) * weights) / 12.0)

"""Every method on every graph at equal budgets: one run, one table."""

from placeto_tf.evaluation.evaluate import evaluate, read_results
from placeto_tf.evaluation.evaluation_config import EvaluationConfig

__all__ = ["EvaluationConfig", "evaluate", "read_results"]

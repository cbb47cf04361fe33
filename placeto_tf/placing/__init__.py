"""`place()` and its parts: options, progress, results, reports, replicas, Keras models."""

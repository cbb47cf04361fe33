"""`place()` and what it needs: options, progress, results, reports, replicas, Keras models."""

"""Placeto's decision process as a batched tf-agents environment, with its cost injected."""

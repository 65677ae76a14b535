"""Softmax attention that learns in context: the model, its training dynamics, and the checked claims of two papers."""

from icl_core import attention, dynamics, features, population, prompts, results

__version__ = "0.1.0"
__all__ = ["attention", "dynamics", "features", "population", "prompts", "results"]

"""Training: what stands between gradients and an optimiser of optax.

optax is an optional dependency: ``pip install 'jaxccomp[optim]'``. It is loaded when something here
is called.
"""

from jaxccomp.optim._allreduce import FeedbackState, allreduce_gradients

__all__ = ["FeedbackState", "allreduce_gradients"]

"""Training: what stands between gradients and an optimiser of optax.

optax is an optional dependency: ``pip install 'jaxccomp[optim]'``. It is loaded when something here
is called.
"""

from jaxccomp.optim._allreduce import FeedbackState, PolicyState, allreduce_gradients
from jaxccomp.optim._policy import Rule

__all__ = ["FeedbackState", "PolicyState", "Rule", "allreduce_gradients"]

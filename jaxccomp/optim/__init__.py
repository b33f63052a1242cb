"""Training: what stands between gradients and an optimiser of optax.

optax is an optional dependency: ``pip install 'jaxccomp[optim]'``. It is loaded when something here
is called.
"""

from jaxccomp.optim._allreduce import FeedbackState, PolicyState, allreduce_gradients
from jaxccomp.optim._policy import Rule
from jaxccomp.optim._stacked import stack_residuals, state_specs, unstack_residuals

__all__ = [
    "FeedbackState",
    "PolicyState",
    "Rule",
    "allreduce_gradients",
    "stack_residuals",
    "state_specs",
    "unstack_residuals",
]

"""Training with optax: gradient transformations that communicate, and outer steps.

optax is an optional dependency: ``pip install 'jaxccomp[optim]'``. The first call of a function
here imports it.
"""

from jaxccomp.optim._adacomp import adacomp
from jaxccomp.optim._allreduce import allreduce_gradients
from jaxccomp.optim._dgc import dgc
from jaxccomp.optim._ecq import ecq
from jaxccomp.optim._onebit_adam import onebit_adam
from jaxccomp.optim._outer import Outer, diloco, local_sgd
from jaxccomp.optim._policy import Rule
from jaxccomp.optim._powersgd import powersgd
from jaxccomp.optim._quorum import Quorum
from jaxccomp.optim._sparse_loco import sparse_loco
from jaxccomp.optim._stacked import (
    gather_state,
    place_state,
    resize_residuals,
    stack_residuals,
    state_shapes,
    state_specs,
    unstack_residuals,
)
from jaxccomp.optim._states import (
    DGCState,
    ECQState,
    FeedbackState,
    OnebitAdamState,
    OuterState,
    PolicyState,
    PowerSGDState,
    QuorumState,
    StreamingState,
)
from jaxccomp.optim._streaming import Streaming
from jaxccomp.optim._train_step import TrainStep, train_step

__all__ = [
    "DGCState",
    "ECQState",
    "FeedbackState",
    "OnebitAdamState",
    "Outer",
    "OuterState",
    "PolicyState",
    "PowerSGDState",
    "Quorum",
    "QuorumState",
    "Rule",
    "Streaming",
    "StreamingState",
    "TrainStep",
    "adacomp",
    "allreduce_gradients",
    "dgc",
    "diloco",
    "ecq",
    "gather_state",
    "local_sgd",
    "onebit_adam",
    "place_state",
    "powersgd",
    "resize_residuals",
    "sparse_loco",
    "stack_residuals",
    "state_shapes",
    "state_specs",
    "train_step",
    "unstack_residuals",
]

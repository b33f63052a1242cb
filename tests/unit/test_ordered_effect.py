"""The state after a failed ordered operation."""

import jax
import jax.numpy as jnp
from golden_errors import raises
from jax._src import core, dispatch
from jax.experimental import io_callback

import jaxccomp  # noqa: F401  (patches JAX's handling of failed tokens)


class FailedBuffer:
    """The token of an operation that fails after its call has returned."""

    def block_until_ready(self):
        raise jax.errors.JaxRuntimeError("on purpose")


def test_failed_ordered_operation_raises_once_and_the_next_one_works():
    @jax.jit
    def ordered(x):
        return io_callback(lambda x: x, jax.ShapeDtypeStruct((), "float32"), x, ordered=True)

    dispatch.runtime_tokens.clear()  # other tests leave tokens of other effects
    assert ordered(jnp.float32(1)) == 1
    tokens = dispatch.runtime_tokens.current_tokens
    (effect,) = tokens
    tokens[effect] = core.Token(FailedBuffer())
    with raises(jax.errors.JaxRuntimeError, "on purpose", golden=False):
        ordered(jnp.float32(2))
    assert ordered(jnp.float32(2)) == 2

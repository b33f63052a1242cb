"""The key-value store of jax.distributed."""

from __future__ import annotations

from typing import Any

import jax

from jaxccomp._jax import internals
from jaxccomp._jax.internals import uses

distributed = internals.module("jax._src.distributed")


@uses("jax.distributed")
def distributed_client() -> Any:
    """Return the client of the key-value store; None before ``jax.distributed.initialize()``."""
    return distributed.global_state.client


@uses("jax.distributed")
def stored(client: Any, key: str, seconds: float) -> bytes | None:
    """Return the value of a key of ``client``'s store; None if not set within ``seconds``.

    Raises:
      jax.errors.JaxRuntimeError: when the store cannot be reached.
    """
    try:
        return client.blocking_key_value_get_bytes(key, max(int(seconds * 1000), 1))
    except jax.errors.JaxRuntimeError as error:
        if "DEADLINE_EXCEEDED" in str(error).split(":", 1)[0]:
            return None
        raise

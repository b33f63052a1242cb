"""backend="xla" (the traced plane): collectives composed of jax.lax, codecs in jax.numpy."""

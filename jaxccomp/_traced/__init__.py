"""The traced plane: collectives composed from jax.lax, and codecs in jax.numpy."""

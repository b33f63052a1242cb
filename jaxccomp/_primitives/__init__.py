"""One JAX primitive per collective, and what JAX does with it: lowering, vmap, derivatives."""

"""One JAX primitive per collective, with its lowering, batching and derivatives."""

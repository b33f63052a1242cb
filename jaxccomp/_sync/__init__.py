"""Weights from ranks that train to ranks that use them: what `jaxccomp.sync` is made of."""

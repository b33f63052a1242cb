"""Side-by-side measurements of jaxccomp and its peers (``python -m jaxccomp bench``)."""

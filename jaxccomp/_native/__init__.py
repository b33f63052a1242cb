"""The native engine: the library, its FFI targets, and what it asks of Python."""

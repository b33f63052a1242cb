"""The native engine: its library, its FFI targets, and its calls into Python."""

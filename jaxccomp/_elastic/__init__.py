"""Groups that lose and admit members; imported only for ``init(coordinator=)``."""

"""The verbs of `bk`, one module a noun."""

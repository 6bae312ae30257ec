"""Implementations of single verbs of `bk`, one file per verb. Loaded when the verb runs."""

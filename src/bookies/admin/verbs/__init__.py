"""The work behind single verbs of `bk`, one file a verb. Loaded when the verb runs."""

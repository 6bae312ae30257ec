"""The verbs of `bk metadata` that are more than a screen."""

"""Verbs of `bk` over HTTP: the table of those that the server carries, the server's side, the client's side."""

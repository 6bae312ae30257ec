"""`bk` and HTTP servers: the verbs that a server carries, on both sides, and `bk top`, which scrapes bookies."""

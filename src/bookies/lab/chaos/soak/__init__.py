"""Hours of ordinary life, see `bk chaos --soak`."""

"""Data over HTTP: the endpoints that append to logs and ledgers and read them, and the gateway that serves them."""

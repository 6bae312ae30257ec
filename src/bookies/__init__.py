"""A replicated log store: ledgers, bookies, and their data pipeline on Spark."""

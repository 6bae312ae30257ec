"""Turns of processes that use one name: leases, by a queue in one record of the metadata store."""

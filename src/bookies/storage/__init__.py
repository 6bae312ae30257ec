"""A bookie's files. Rooms in order, each imports only from those before it:

disks, records, journal, identity, cache, entry_log, index, rocksdb, checkpoint, engine, gc, scrub, offline;
`store.py` on top.
"""

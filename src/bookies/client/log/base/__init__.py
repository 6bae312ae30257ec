"""What writers, readers and consumers of a log share: its records in the metadata store, its reader, its times."""

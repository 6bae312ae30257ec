"""Parts that writers, readers and consumers of a log share: records in the metadata store, the reader, and times."""

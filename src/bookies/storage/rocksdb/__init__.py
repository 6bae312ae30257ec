"""Apache's RocksDB index (DbLedgerStorage): inspection and conversion."""

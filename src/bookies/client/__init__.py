"""The client library: connections, writer, reader, repair, logs, and the blocking API."""

"""Programs that `bk demo` starts."""

"""The programs that `bk demo` starts."""

"""The console: pages for a browser, which use the endpoints under `/api/v1`, and the endpoints that only they need."""

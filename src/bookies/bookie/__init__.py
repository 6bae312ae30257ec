"""The bookie: connections, what each request does, registration, the control endpoint and the process."""

"""What all jobs share: options, work items, progress, reports."""

"""What reading, writing and jobs share: options, positions, sessions."""

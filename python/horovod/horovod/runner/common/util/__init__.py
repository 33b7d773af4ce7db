"""What services use."""

"""What an extraction will need, from its schema and a few measured traces."""

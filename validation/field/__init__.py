"""What people measured and published, beside the answers to their questions."""

"""What people would use instead, beside Winnow's plans: every arm in a process of its own, on the same token ids."""

"""What many records say together: ranked, compared, fitted; leaks, imbalance, budgets. Pure functions."""

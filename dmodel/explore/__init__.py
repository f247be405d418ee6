"""The model as a page: its formulas and rules as programs that run in a browser."""

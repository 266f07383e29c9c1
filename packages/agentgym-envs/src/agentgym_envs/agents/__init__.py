"""How an agent replies: reply formats, scaffolds, and the names that combine them."""

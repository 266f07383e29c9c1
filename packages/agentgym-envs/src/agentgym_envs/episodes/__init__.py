"""Episodes: what they record, how a conversation is built, and the drivers that play them."""

"""The models that train: loading, heads, attention and weights."""

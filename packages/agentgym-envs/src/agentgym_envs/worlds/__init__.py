"""The environments, one folder each. They don't import each other, and this package imports none of them."""

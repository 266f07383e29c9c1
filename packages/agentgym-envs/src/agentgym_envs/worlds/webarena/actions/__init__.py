"""The action grammar, and how actions are carried out on a page."""

"""The action grammar and the execution of actions on a page."""

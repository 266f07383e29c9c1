"""The home page: which sites there are, and whom one is signed in as."""

"""The home page: lists the sites and the account signed in to each."""

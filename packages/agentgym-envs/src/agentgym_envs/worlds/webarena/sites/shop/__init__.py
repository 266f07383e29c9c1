"""The department store Larkspur: catalog, cart, checkout and customer accounts."""

"""The department store Larkspur: catalogue, cart, checkout and customers' accounts."""

"""The Pyro model: kernels, likelihoods, links and the chain they form."""

"""Lengthscales drawn from their posterior by the No-U-Turn sampler, for `inference="mcmc"`.

Given lengthscales, chains of Gibbs sampling draw everything else well (see `gibbs_chains`). NUTS therefore
runs on `SequentialChain.collapsed_model`, in which functions are integrated out, and of its samples the
lengthscales are kept: each becomes those of a chain of its own.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from operator import attrgetter

import torch
from pyro.infer import MCMC, NUTS
from pyro.infer.autoguide.initialization import init_to_value
from torch import Tensor

from pyro_mgp.model.kernels import trend_of
from pyro_mgp.model.local_parameters import local_parameters, priors_of
from pyro_mgp.model.priors import with_priors
from pyro_mgp.model.sequential_chain import SequentialChain

# Iterations of adaptation, iterations per kept sample, and the largest number of doublings of a trajectory.
_WARMUP, _THINNING, _MAX_DEPTH = 150, 5, 6


def draw_lengthscales(
    chain: SequentialChain, filled: Tensor, observed: Tensor, n: int, seed: int, *, progress: bool = False
) -> list[Tensor]:
    """Draw the lengthscales of the links of a chain n times from their posterior, `[n, P]` for each link.

    NUTS starts at the parameters of the chain, of Gaussian links with the default kernel, and at its training
    table completed, `[N, D]`. The global random generators are left as they were.
    """
    devices = [] if filled.device.type == "cpu" else [filled.device]
    with torch.random.fork_rng(devices), local_parameters():
        torch.manual_seed(seed)
        prior = with_priors(chain, lengthscales=True)
        prior.requires_grad_(False)
        assert isinstance(prior, SequentialChain)
        start = init_to_value(values=_start(chain, priors_of(prior), filled, observed))
        kernel = NUTS(prior.collapsed_model, max_tree_depth=_MAX_DEPTH, init_strategy=start)
        mcmc = MCMC(kernel, num_samples=n * _THINNING, warmup_steps=_WARMUP, disable_progbar=not progress)
        mcmc.run(filled, observed)
    samples = mcmc.get_samples()
    # A link without inputs has no lengthscale.
    none = filled.new_ones(n * _THINNING, 0)
    names = [f"links.{i}.kernel.kern1.lengthscale" for i in range(len(chain.links))]
    return [samples.get(name, none)[_THINNING - 1 :: _THINNING].detach() for name in names]


def with_lengthscales(chain: SequentialChain, lengthscales: Sequence[Tensor]) -> SequentialChain:
    """Return a copy of a chain whose links have other lengthscales, `[P]` each."""
    chain = copy.deepcopy(chain)
    with torch.no_grad(), local_parameters():
        for link, own in zip(chain.links, lengthscales, strict=True):
            if len(own):
                _, rest = trend_of(link.kernel)
                rest.lengthscale = own
    return chain


def _start(
    chain: SequentialChain, paths: Sequence[str], filled: Tensor, observed: Tensor
) -> dict[str, Tensor]:
    """Return the values at which NUTS starts: estimates of a chain's parameters, and filled cells."""
    values = {path: attrgetter(path)(chain).detach() for path in paths}
    links = zip(chain.names, chain.links, chain.informative(observed), strict=True)
    for name, link, informative in links:
        values[f"z_{name}"] = filled[informative & ~observed[:, link.column], link.column]
    return values

"""Priors under which `impute` draws noises and coefficients, as a part of the Pyro model of a chain.

    noise variance of a Gaussian link           √s² ~ half-Cauchy(1)
    coefficient of a product in a `Trend`       β ~ N(0, σ²),  σ ~ half-Cauchy(τ · scale of its group)
    shared scale of the Q products of a link    τ ~ log-normal(0, (Q / 20)²)
    coefficient of a linear term                the same with τ = 1, but σ is fixed in Gaussian links
    of a `sparse` linear term                   that of a product, with the same τ
    random effect of a group                    half-t(2 degrees of freedom), jointly with those of other
                                                links, see `random_effects`; here u ~ N(0, σ²) with
                                                σ ~ half-Cauchy(1) for all groups, independent of others
    rest of the kernel                          √(its variance) ~ half-Cauchy(scale)
    its lengthscales, with inference="mcmc"     ℓ ~ log-normal(log(4 √P), 1)

P is the number of inputs; 4 √P is where training starts, at a nearly linear function. All are in standardised
units. A trend has many products, of which few matter: with a standard deviation of its own for each, large
coefficients are hardly shrunk, and τ shrinks the others more strongly, the fewer products matter (horseshoe
prior; Carvalho, Polson and Scott, Biometrika 97:465-480, 2010). Such a prior falls like 1 / β², and would
move a slope with standard error s by 2 s² / β towards zero, a quarter of s if there are 200 rows and β = .5:
slopes of Gaussian links have a fixed one. With many inputs for the number of rows, the noise that fixed ones
let in is more than that: in 200 rows of 50 columns variances of imputed ones were too large by a tenth.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pyro.distributions as dist
import torch
from pyro.nn import PyroSample
from torch import Tensor
from torch.distributions.transforms import PowerTransform

from pyro_mgp.model.chain import Chain
from pyro_mgp.model.kernels import Trend, trend_of
from pyro_mgp.model.link import Link
from pyro_mgp.model.local_parameters import local_parameters

# Scales of the half-Cauchy priors of intercept, linear terms, products, the rest and random effects, in
# standardised units.
# In design "slade" of the coverage study (30 tables), fixed normal priors of standard deviation 0.5 for
# products leave the bias of the interaction as it is (-.10) and widen its intervals from .64 to .77.
_SCALES = (1.0, 1.0, 0.3, 0.3, 1.0)
# Prior standard deviation of the log of the scale that products share, for each of them, in imputations and
# in the search for a plan. With .01 imputations of small tables have a CRPS higher by 1 to 3 %; with a
# half-Cauchy prior whatever the number of products, the bias of the interaction of "slade" is a third larger.
# In the search .05 lost products of "eleven_2000", whose outcome then came before its predictors.
_SPREAD, _SPREAD_OF_SEARCH = 0.05, 0.01
# Median of the prior of lengthscales, in multiples of √P.
_TYPICAL = 4.0
LINEAR, PRODUCTS, REST, EFFECT = 1, 2, 3, 4
"""Groups of the coefficients of linear terms, of products, of the rest of a kernel, and of the first random
effects; see `Trend.groups`."""


def group_scales(link: Link) -> Tensor:
    """Return the scale of the half-Cauchy prior of each group of a link's values, `[5]`.

    The groups are `REST` and those of `Trend.groups`, of which intercepts have no such prior. All random
    effects have that of the last. Scales are the same for all links, of whose dtype and device they are.
    """
    return link.Xu.new_tensor(_SCALES)


def shared_spread(trend: Trend, *, searching: bool = False) -> float:
    """Return the prior standard deviation ω of log τ, the scale that products share; 0 without products.

    It is smaller while chains are `searching` for a plan, which must not lose a product.
    """
    spread = _SPREAD_OF_SEARCH if searching else _SPREAD
    return spread * (trend.places.shape[1] + len(trend.sparse_deviations))


def drawn_groups(link: Link) -> dict[str, int]:
    """Return the attributes of a trend whose deviations have priors, with the groups of these."""
    groups = {"product_deviations": PRODUCTS, "sparse_deviations": PRODUCTS}
    return groups if link.is_gaussian else {"linear_deviations": LINEAR, **groups}


def with_priors(chain: Chain, *, lengthscales: bool = False) -> Chain:
    """Return a copy of a chain whose noises and coefficients have the priors under which `impute` draws them.

    Without random effects its `model` is then the density from which `impute` draws given the estimates of
    lengthscales and inducing inputs, for `pyro.infer.NUTS` or an automatic guide. Kernels without a `Trend`
    have estimates, too.

    With `lengthscales` these have their prior as well, as with `inference="mcmc"`.

    Example:
        >>> from pyro_mgp.model.kernels import linear_quadratic_matern32
        >>> from pyro_mgp.model.likelihoods import Gaussian
        >>> kernel, Xu = linear_quadratic_matern32(1), torch.zeros(1, 1).double()
        >>> chain = with_priors(Chain([Link(kernel, Xu, 0, [1], Gaussian(0.5))], ["y"], n_rows=3))
        >>> sorted(chain.links[0].kernel.kern0._pyro_samples)
        ['log_shared', 'product_deviations']
    """
    chain = copy.deepcopy(chain)
    with local_parameters():
        for link in chain.links:
            if link.is_gaussian:
                noise = _squared_half_cauchy(link.Xu.new_ones(()))
                link.likelihood.noise = PyroSample(noise)  # type: ignore[misc]  # read-only elsewhere
            trend, rest = trend_of(link.kernel)
            if trend is not None:
                scales, spread = group_scales(link), shared_spread(trend)
                for name, group in drawn_groups(link).items():
                    if n := len(getattr(trend, name)):
                        wide = scales[group].expand(n)
                        if group == PRODUCTS:
                            trend.log_shared = PyroSample(dist.Normal(torch.zeros_like(wide[0]), 1.0))
                            setattr(trend, name, PyroSample(_product_deviations(wide, spread)))
                        else:
                            setattr(trend, name, PyroSample(dist.HalfCauchy(wide).to_event(1)))
                if n := len(trend.sizes):
                    wide = scales[EFFECT].expand(n)
                    trend.effect_deviations = PyroSample(dist.HalfCauchy(wide).to_event(1))
                rest.variance = PyroSample(_squared_half_cauchy(scales[REST]))
                if lengthscales and (n := len(rest.active_dims)):
                    typical = link.Xu.new_full((n,), math.log(_TYPICAL * n**0.5))
                    rest.lengthscale = PyroSample(dist.LogNormal(typical, 1.0).to_event(1))
    return chain


def _product_deviations(scales: Tensor, spread: float) -> Callable[[Trend], dist.Distribution]:
    """Return the prior of the standard deviations of the coefficients of products, given their trend."""

    def prior(trend: Trend) -> dist.Distribution:
        shared = (spread * trend.log_shared[..., None]).exp()
        return dist.HalfCauchy(scales * shared).to_event(1)

    return prior


def _squared_half_cauchy(scale: Tensor) -> dist.TransformedDistribution:
    return dist.TransformedDistribution(dist.HalfCauchy(scale), [PowerTransform(2 * torch.ones_like(scale))])

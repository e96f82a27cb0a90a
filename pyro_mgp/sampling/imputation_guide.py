"""Guide whose samples are imputations, for `pyro.infer.Predictive` and the model of a fitted chain."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_mgp.data.encoded_table import EncodedTable, row_keys
from pyro_mgp.model.local_parameters import local_parameters
from pyro_mgp.sampling.sampler import Sampler


class ImputationGuide:
    """Pyro guide that draws functions and missing cells of a fitted chain as `impute` does.

    `Predictive(chain.model, guide=guide, num_samples=m)` gives m imputations in its site "filled", with local
    GPs, discrete supports and bounds. Each call goes on where the last one ended. `Chain.guide` in evaluation
    mode takes functions from q(u) instead, and serves chains that were not fitted by an imputer.

    Raises:
        ValueError: If the chain propagates latent functions, whose model has no sites of missing numbers.
    """

    def __init__(self, sampler: Sampler) -> None:
        if sampler.chain.propagate == "latent":
            raise ValueError(
                'this imputer propagates latent functions (propagate="latent", as in paper()), and the model '
                "of its chain has no sites of missing numbers: call impute, or fit with "
                'engine=Engine(propagate="predictive")'
            )
        self.sampler = sampler
        self.n_drawn = 0

    @torch.no_grad()
    def __call__(
        self,
        filled: Tensor,
        observed: Tensor,
        rows: Tensor | None = None,
        limits: Tensor | None = None,
    ) -> None:
        """Draw one imputation for each sample of the enclosing plates; takes the arguments of `Chain.model`.

        Only observed cells are read, by which rows of the training table are recognised, and limits.
        """
        # Its shape is that of the plates, of several samples in parallel or of none.
        shape = pyro.sample(
            "imputation", dist.Delta(filled.new_zeros(())), infer={"is_auxiliary": True}
        ).shape
        imputations = range(self.n_drawn, self.n_drawn + shape.numel())
        self.n_drawn = imputations.stop
        values = filled.where(observed, torch.nan).cpu().numpy()
        limits = None if limits is None else limits.cpu()
        keys = row_keys(values, pd.RangeIndex(len(values)), limits=limits)
        table = EncodedTable.from_numpy(np.asarray(values), keys, limits).to(self.sampler.start.device)
        chain = self.sampler.chain
        drawn = torch.cat([cells for _, cells in self.sampler.draws(table, imputations)], dim=1)
        with local_parameters():
            functions = self.sampler.functions(imputations)
        for name, link, u in zip(chain.names, chain.links, functions, strict=True):
            pyro.sample(f"u_{name}", dist.Delta(u.view(*shape, -1), event_dim=1))
            holes = (~observed[:, link.column]).nonzero()[:, 0]
            if len(holes):
                cells = drawn[:, holes, link.column].view(*shape[:-1], -1)
                with pyro.plate(f"missing_{name}", len(holes), dim=-1):
                    pyro.sample(f"z_{name}", dist.Delta(cells))

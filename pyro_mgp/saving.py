"""Saving and loading of fitted imputers: a folder with `header.json` and `arrays.safetensors`, no pickle."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_mgp._support.devices import resolve_device
from pyro_mgp._support.messages import listing
from pyro_mgp.data.codecs import codec_from_dict
from pyro_mgp.data.column_spec import ColumnSpec, Kind
from pyro_mgp.data.encoded_table import EncodedTable
from pyro_mgp.data.groups import WithinGroups
from pyro_mgp.data.survival import Survival
from pyro_mgp.data.table import TableCodec
from pyro_mgp.data.table_encoder import TableEncoder
from pyro_mgp.fitting.chain_fit import untrained_chain
from pyro_mgp.inference.gibbs_chains import n_chains
from pyro_mgp.inference.training import History
from pyro_mgp.model.chain import Chain
from pyro_mgp.model.column_order import MOST_INPUTS
from pyro_mgp.model.kernels import WITH_TREND, KernelFactory, resolve_kernel, trend_of
from pyro_mgp.model.link_specs import LinkSpec
from pyro_mgp.model.local_parameters import local_parameters
from pyro_mgp.sampling.discrete_support import DiscreteSupport
from pyro_mgp.sampling.fitted_model import FittedModel
from pyro_mgp.sampling.initial_fill import InitialFill
from pyro_mgp.sampling.local_gp import MAX_NEIGHBOURS, LocalGPParams
from pyro_mgp.sampling.neighbours import Neighbours
from pyro_mgp.sampling.sequential_fill import SequentialFill
from pyro_mgp.settings import Choice, Engine, Parameters, Settings, check_settings, choose_kernel
from pyro_mgp.storage.atomic import atomic_folder
from pyro_mgp.storage.frames import to_json
from pyro_mgp.storage.header import Shapes, read_arrays, read_header, write_arrays, write_header
from pyro_mgp.storage.untrusted import MALFORMED, build, check, check_among

Imputer = TypeVar("Imputer", bound=Parameters)

KIND = "MGPImputer"
FORMAT_VERSION = 20
_ARRAYS = "arrays.safetensors"
# Parameters of a link whose shape depends on its inducing inputs.
_OF_INDUCING = {"Xu_unconstrained": 1, "u_loc_unconstrained": 1, "u_scale_tril_unconstrained": 2}

Header = Mapping[str, Any]
Constant = tuple[str | int, tuple[str | int, ...]]
"""Label of a column of groups, and labels of the columns that are constant within these."""


def write(
    parameters: Mapping[str, Any],
    model: FittedModel,
    settings: Settings,
    feature_names: list[str],
    path: str | os.PathLike[str],
    overwrite: bool,
) -> None:
    """Write a fitted imputer to the folder `path` atomically; see `MGPImputer.save`."""
    fields = _settings(parameters, model, settings) | _fields(model) | {"feature_names": feature_names}
    arrays = {name: value.cpu().numpy() for name, value in model.tensors().items()}
    with atomic_folder(path, overwrite=overwrite) as folder:
        write_arrays(folder / _ARRAYS, arrays)
        write_header(folder, KIND, FORMAT_VERSION, fields, (_ARRAYS,))


def _settings(parameters: Mapping[str, Any], model: FittedModel, settings: Settings) -> dict[str, Any]:
    """Return the header's record of the parameters and of the settings of the fit."""
    order, specs, engine = parameters["order"], parameters["specs"] or {}, parameters["engine"]
    kernel = parameters["kernel"] if isinstance(parameters["kernel"], str) else None
    groups = parameters["groups"]
    elsewhere = dict.fromkeys(("order", "specs", "optimizer", "loss", "engine", "survival", "groups"))
    own = {**parameters, "random_state": model.seed, "kernel": kernel, **elsewhere}
    switches = None if engine is None else {name: to_json(value) for name, value in vars(engine).items()}
    return {
        "settings": {**{name: to_json(value) for name, value in own.items()}, "engine": switches},
        "choices": [[name, to_json(value), why] for name, value, why in settings.to_frame().itertuples()],
        "order": None if order is None else [to_json(label) for label in order],
        "groups": groups if isinstance(groups, str | int | None) else [to_json(label) for label in groups],
        "specs": [[to_json(label), spec.to_dict()] for label, spec in specs.items()],
    }


def _fields(model: FittedModel) -> dict[str, Any]:
    """Return the header's description of a fitted model: codecs, links, training history and more."""
    encoder, near = model.encoder, model.neighbours
    fields = {
        "ranges": [[to_json(label), {"middle": v}] for label, v in encoder.rules.middles.items()],
        "survival": _survival_fields(encoder.rules.survival),
        "texts": [to_json(label) for label in sorted(encoder.rules.texts, key=str)],
        "within": [
            [to_json(group), [to_json(label) for label in labels]]
            for group, labels in encoder.rules.within.constant.items()
        ],
        "incomplete": encoder.incomplete,
        "columns": [to_json(label) for label in encoder.columns],
        "seed": model.seed,
        "n_rows": model.chain.n_rows,
        "sequential": model.is_sequential,
        "codec": {"columns": [column.to_dict() for column in encoder.codec.columns]},
        "target": None if encoder.target is None else encoder.target.to_dict(),
        "wirings": [dataclasses.asdict(link) for link in model.link_specs],
        "history": dataclasses.asdict(model.history),
        "discrete_support": [None if each is None else each.to_dict() for each in model.discrete_support],
        "characters": None,
    }
    if near is not None:
        fields["n_neighbours"] = near.n_neighbours
        fields["characters"] = [[dataclasses.asdict(each) for each in of_link] for of_link in near.params]
        of_fill = near.fill.params
        fields["sequential_fill"] = [None if each is None else dataclasses.asdict(each) for each in of_fill]
    return fields


def read(
    make: type[Imputer], path: str | os.PathLike[str], kernel: KernelFactory | None, device: str
) -> tuple[Imputer, FittedModel, Settings, list[str]]:
    """Load the imputer, fitted model, settings of the fit and feature names from a saved folder."""
    header: Header = read_header(path, KIND, FORMAT_VERSION, (_ARRAYS,))
    try:
        imputer = make(**_read_parameters(header, kernel, device))
        engine = check_settings(imputer)
        parts = _Parts(imputer, engine, header)
        arrays = read_arrays(Path(path) / _ARRAYS, parts.check_shapes)
        _check_arrays(arrays)
        on = resolve_device(device, parts.n_rows)
        model = parts.model({name: torch.as_tensor(array, device=on) for name, array in arrays.items()})
        names = build(list[str], header["feature_names"], "feature_names")
        settings = _read_choices(header, model)
    except MALFORMED as error:
        advice = "" if kernel is None else "; is the kernel that is passed that of the fit?"
        raise ValueError(f"the imputer in {str(path)!r} cannot be restored: {error}{advice}") from error
    return imputer, model, settings, names


def _read_parameters(header: Header, kernel: KernelFactory | None, device: str) -> dict[str, Any]:
    settings = header["settings"] | {"device": device, "order": header["order"]}
    settings["groups"] = build(str | int | list[str | int] | None, header["groups"], "groups")
    if settings["engine"] is not None:
        settings["engine"] = Engine(**build(dict, settings["engine"], "engine"))
    specs = build(list[tuple[str | int, dict]], header["specs"], "specs")  # type: ignore[type-arg]
    found = {label: build(ColumnSpec, spec, f"spec of {label!r}") for label, spec in specs}
    settings["specs"] = found or None
    if (outcome := _read_survival(header)) is not None:
        settings["survival"] = (outcome.time, outcome.event)
    if settings["kernel"] is None:
        if kernel is None:
            raise ValueError("it was fitted with a kernel of your own, pass it: load(path, kernel=...)")
        settings["kernel"] = kernel
    return settings


def _survival_fields(outcome: Survival | None) -> dict[str, Any] | None:
    if outcome is None:
        return None
    labels = {"time": to_json(outcome.time), "event": to_json(outcome.event)}
    return labels | {"times": outcome.times, "hazards": outcome.hazards}


def _read_survival(header: Header) -> Survival | None:
    """Return the survival outcome, with its cumulative hazard."""
    if header["survival"] is None:
        return None
    outcome = build(Survival, header["survival"], "survival")
    times, hazards = np.array(outcome.times), np.array(outcome.hazards)
    ascending = len(times) == len(hazards) and bool(
        (np.diff(times) > 0).all() and (np.diff(hazards) > 0).all()
    )
    check(ascending and bool((hazards > 0).all()), "survival: expected ascending times and positive hazards")
    return outcome


def _read_choices(header: Header, model: FittedModel) -> Settings:
    """Return the settings of the fit."""
    rows = build(list[tuple[str, str | int | None, str]], header["choices"], "choices")
    found = {name: Choice(value, reason) for name, value, reason in rows}
    names = [field.name for field in dataclasses.fields(Settings)]
    check(sorted(name for name, _, _ in rows) == sorted(names), f"choices: expected {names}")
    inputs = "earlier" if model.is_sequential else "others"
    n_inducing = max((link.n_inducing for link in model.chain.links), default=0)
    known: dict[str, str | int] = {"inputs": inputs, "n_inducing": n_inducing, "seed": model.seed}
    found |= {name: Choice(value, found[name].reason) for name, value in known.items()}
    return Settings(**found | {"device": Choice(str(model.initial_fill.device), "where it was loaded")})


class _Parts:
    """Contents of a saved folder, checked for consistency before a model is built from them."""

    def __init__(self, parameters: Parameters, engine: Engine, header: Header) -> None:
        self.parameters, self.engine, self.header = parameters, engine, header
        target = header["target"]
        columns = build(list[str | int], header["columns"], "columns")
        ranges = build(list[tuple[str | int, dict]], header["ranges"], "ranges")  # type: ignore[type-arg]
        middles = {label: build(tuple[float, float], each.get("middle"), "ranges") for label, each in ranges}
        self.encoder = TableEncoder(
            dataclasses.replace(
                parameters.rules(columns),
                middles=middles,
                survival=_read_survival(header),
                texts=frozenset(build(list[str | int], header["texts"], "texts")),
                within=WithinGroups(dict(build(list[Constant], header["within"], "within"))),
            ),
            TableCodec(tuple(codec_from_dict(column) for column in header["codec"]["columns"])),
            None if target is None else codec_from_dict(target),
            columns,
            build(list[int], header["incomplete"], "incomplete"),
        )
        self.link_specs = build(list[LinkSpec], header["wirings"], "wirings")
        self.sequential = build(bool, header["sequential"], "sequential")
        self.seed, self.n_rows = (build(int, header[name], name) for name in ("seed", "n_rows"))
        self.history = build(History, header["history"], "history")
        self.kernel = choose_kernel(parameters, self.n_rows, self.sequential).value
        self._check_fields()

    def _check_fields(self) -> None:
        """Raise a ValueError if the saved columns and links are inconsistent."""
        encoder = self.encoder
        check(self.n_rows >= 1, "n_rows: expected at least one row")
        check_among(encoder.incomplete, len(encoder.columns), "incomplete")
        variables = [label for label in encoder.columns if label not in encoder.rules.not_modelled]
        modelled = [column.name for column in encoder.codec.columns]
        check(variables == modelled, f"the columns {listing(variables)} are modelled as {listing(modelled)}")
        width = encoder.n_encoded
        columns = [link.column for link in self.link_specs]
        check_among(columns, width, "columns of links")
        if encoder.target is not None:
            check(columns[-1:] == [width - 1] and encoder.target.width == 1, "the target has no link")
        has_products = resolve_kernel(self.kernel) in WITH_TREND
        for link in self.link_specs:
            check_among((link.column, *link.inputs), width, f"inputs of {link.name!r}")
            check_among((link.column, *link.unless), width, f"levels before {link.name!r}")
            multiplied = link.inputs if link.product_inputs is None else link.product_inputs
            check_among(multiplied, width, f"product inputs of {link.name!r}")
            known = set(multiplied) <= set(link.inputs)
            check(known, f"{link.name!r} has products of columns that are no inputs")
            few = len(multiplied) <= MOST_INPUTS or not has_products
            check(few, f"{link.name!r} has products of more than {MOST_INPUTS} inputs")
            check(self.sequential or len(link.inputs) > 0, f"{link.name!r} is predicted from nothing")
            self._check_groups(link)
        check(encoder.rules.within.constant.keys() <= {*encoder.columns}, "within: there is no such column")
        check(encoder.rules.texts <= {*encoder.columns}, "texts: there is no such column")

    def _check_groups(self, link: LinkSpec) -> None:
        """Raise a ValueError if the saved groups of a link are inconsistent."""
        columns, codec = {}, self.encoder.codec
        for column in codec.columns:
            if column.kind is Kind.GROUP and column.levels is not None and column.width:
                columns[codec.slices[column.name].start] = len(column.levels)
        places = tuple(effect.place for effect in link.effects)
        right = places == link.inputs[len(link.smooth_inputs) :] and {*places} <= {*columns}
        right = right and all(effect.n_groups == columns[effect.place] for effect in link.effects)
        right = right and all({*effect.slopes} <= {*link.smooth_inputs} for effect in link.effects)
        times = {effect.time for effect in link.effects} - {None}
        right = right and times <= {*range(codec.n_encoded)} - {*columns}
        right = right and (link.once_per is None or link.once_per in columns)
        check(right, f"{link.name!r} has effects of other groups than the columns")

    def _chain(self, inducing: Tensor) -> Chain:
        """Build an untrained chain with the given inducing inputs, `[M, D]`."""
        noise = [1.0] * len(self.link_specs)
        return untrained_chain(
            self.parameters, self.engine, self.kernel, self.encoder.codec, self.link_specs, noise, inducing,
            self.n_rows, is_sequential=self.sequential,
        )  # fmt: skip

    def check_shapes(self, shapes: Shapes) -> None:
        """Raise a ValueError if an array has another shape than the header implies."""
        width, n_links = self.encoder.n_encoded, len(self.link_specs)
        expected: dict[str, tuple[int, ...]] = {"start.mean": (width,), "start.covariance": (width, width)}
        if n_links:
            n_inducing = shapes.get("chain.links.0.Xu_unconstrained", (0,))[0]
            check(1 <= n_inducing <= self.n_rows, f"expected 1 to {self.n_rows} inducing inputs")
            small = self._chain(torch.zeros(1, width, dtype=torch.float64))
            for name, tensor in small.state_dict().items():
                depends = _OF_INDUCING.get(name.rsplit(".", 1)[-1], 0)
                grown = [size - 1 + n_inducing for size in tensor.shape[:depends]]
                expected[f"chain.{name}"] = (*grown, *tensor.shape[depends:])
        if self.header["characters"] is not None:
            n_rows = shapes.get("near.rows", (0,))[0]
            expected |= {"near.rows": (n_rows, width), "near.residuals": (n_links, n_rows)}
        if "training.values" in shapes:
            n_rows = shapes["training.values"][0]
            expected |= {f"training.{name}": (n_rows, width) for name in ("values", "observed")}
            expected["training.keys"] = (n_rows,)
            if "training.limits" in shapes:
                expected["training.limits"] = (n_rows, width, 2)
            if "training.errors" in shapes:
                expected["training.errors"] = (n_links, n_rows)
        n_drawn = shapes.get("lengthscales.0", (0,))[0]
        if n_drawn:
            has_links = self.sequential and n_links > 0
            check(has_links, "lengthscales were drawn, but the chain has no links, or is not sequential")
            check(n_drawn == n_chains(self.n_rows), f"{n_drawn} lengthscales, expected one per chain")
            for i, link in enumerate(small.links):
                expected[f"lengthscales.{i}"] = (n_drawn, len(trend_of(link.kernel)[1].active_dims))
        for name in {**expected, **shapes}:
            wanted, found = expected.get(name), shapes.get(name)
            check(wanted == found, f"array {name[:80]!r}: expected shape {wanted}, the file has {found}")

    def model(self, tensors: Mapping[str, Tensor]) -> FittedModel:
        """Return the fitted model; raise a ValueError if the arrays do not fit the header."""
        is_drawn = self.engine.initial_fill == "linear"
        start = InitialFill(tensors["start.mean"], tensors["start.covariance"], is_drawn)
        _, info = torch.linalg.cholesky_ex(start.covariance)
        check(int(info) == 0, "array 'start.covariance' is not a covariance matrix: not positive definite")
        n_links = len(self.link_specs)
        n_inducing = len(tensors["chain.links.0.Xu_unconstrained"]) if n_links else 0
        chain = self._chain(start.mean.new_zeros(n_inducing, len(start.mean)))
        _load_parameters(chain, tensors)
        with_rows = "training.values" in tensors
        check(with_rows or not self.sequential or n_links == 0, "a sequential chain has no training rows")
        check(n_links > 0 or not with_rows, "training rows belong to a chain with links")
        names = [field.name for field in dataclasses.fields(EncodedTable)]
        of_rows = {name: tensors[key] for name in names if (key := f"training.{name}") in tensors}
        rows = EncodedTable(**of_rows) if with_rows else None
        for link, errors in zip(chain.links, tensors.get("training.errors", ()), strict=False):
            check(bool((errors >= 0).all()), "array 'training.errors' holds a negative variance")
            link.known_variance = errors if errors.any() else None
        drawn = [tensors[f"lengthscales.{i}"] for i in range(n_links) if "lengthscales.0" in tensors]
        check(all(bool((own > 0).all()) for own in drawn), "array 'lengthscales' holds a negative one")
        support = self.header["discrete_support"]
        check(len(support) == n_links, f"expected discrete_support of {n_links} links, got {len(support)}")
        supports = [None if each is None else DiscreteSupport.from_dict(each, start.mean) for each in support]
        model = FittedModel(
            self.encoder,
            self.link_specs,
            chain,
            start,
            self._neighbours(chain, start, tensors, supports),
            supports,
            rows,
            self.history,
            self.seed,
            self.engine.joint_draws,
            lengthscales=drawn or None,
        )
        rules = self.encoder.rules
        within = dataclasses.replace(rules.within, known=model.cells_of_groups())
        encoder = dataclasses.replace(self.encoder, rules=dataclasses.replace(rules, within=within))
        return dataclasses.replace(model, encoder=encoder)

    def _neighbours(
        self,
        chain: Chain,
        gaussian: InitialFill,
        tensors: Mapping[str, Tensor],
        supports: Sequence[DiscreteSupport | None],
    ) -> Neighbours | None:
        """Return the local GPs of the links, which may have discrete `supports`; None if no link has one."""
        characters, n_links = self.header["characters"], len(self.link_specs)
        if characters is None:
            return None
        check(len(characters) == n_links, f"expected characters of {n_links} links, got {len(characters)}")
        known = [[LocalGPParams.from_dict(each) for each in of_link] for of_link in characters]
        of_fill = build(list, self.header["sequential_fill"], "sequential_fill")
        check(len(of_fill) == n_links, f"expected sequential_fill of {n_links} links, got {len(of_fill)}")
        fill = [None if each is None else LocalGPParams.from_dict(each) for each in of_fill]
        k = build(int, self.header["n_neighbours"], "n_neighbours")
        enough = (~tensors["near.residuals"].isnan()).sum(1).tolist()
        for link, of_link, start, n_known in zip(self.link_specs, known, fill, enough, strict=True):
            both = [*of_link, start] if start else of_link
            fits = all(len(each.lengthscales) == len(link.inputs) for each in both)
            check(fits, f"{link.name!r} has other lengthscales than inputs")
            shared = {dataclasses.replace(each, lengthscales=(), nugget=1.0) for each in of_link}
            check(len(shared) <= 1, f"{link.name!r} has metrics with different hyperparameters")
            check(not both or 1 <= k <= min(n_known, MAX_NEIGHBOURS), f"{link.name!r} lacks neighbours")
        rows, residuals = tensors["near.rows"], tensors["near.residuals"]
        values = [each.values if each is not None and each.locality > 0 else None for each in supports]
        sequential = SequentialFill.of(chain, gaussian, rows, ~residuals.isnan(), fill, k, values)
        return Neighbours.of(chain, rows, residuals, known, k, sequential, values)


def _load_parameters(chain: Chain, tensors: Mapping[str, Tensor]) -> None:
    """Load saved parameters into a chain; raise a ValueError if they are not finite or do not fit."""
    state = {name.removeprefix("chain."): t for name, t in tensors.items() if name.startswith("chain.")}
    built = {name: buffer.clone() for name, buffer in chain.named_buffers()}
    chain.load_state_dict(state)
    for name, buffer in built.items():
        same = torch.equal(chain.get_buffer(name), buffer)
        check(same, f"array 'chain.{name}' differs from the one that was built")
    with torch.no_grad(), local_parameters():
        for path, module in chain.named_modules():
            for name in getattr(module, "_pyro_params", ()):
                check(bool(getattr(module, name).isfinite().all()), f"{path}.{name} is not finite")
    chain.eval()


def _check_arrays(arrays: Mapping[str, NDArray[Any]]) -> None:
    """Raise a ValueError unless the arrays have the right dtypes and are finite."""
    for name, array in arrays.items():
        kind = {"training.observed": np.bool_, "training.keys": np.int64}.get(name, np.float64)
        check(array.dtype == kind or name.endswith(".inputs"), f"array {name!r} holds {array.dtype}")
        if array.dtype.kind == "f":
            infinite, undefined = np.isinf(array), np.isnan(array)
            may_be = {"near.residuals": infinite, "training.limits": undefined}
            wrong = may_be.get(name, infinite | undefined)
            check(not wrong.any(), f"array {name!r} holds numbers that are not finite")

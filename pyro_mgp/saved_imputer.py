"""A fitted imputer as a folder: `header.json` and `arrays.safetensors`, no pickle."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_mgp import _storage
from pyro_mgp.assembly import Wiring
from pyro_mgp.checkpoint import fingerprint
from pyro_mgp.column import ColumnCodec
from pyro_mgp.column_spec import ColumnSpec
from pyro_mgp.devices import resolve_device
from pyro_mgp.few_values import FewValues
from pyro_mgp.fill import JointGaussian
from pyro_mgp.kernels import KernelFactory
from pyro_mgp.neighbours import Character, Neighbours
from pyro_mgp.rules import Rules
from pyro_mgp.sampling import Factorised, Rows, Start
from pyro_mgp.table import TableCodec
from pyro_mgp.training import History

if TYPE_CHECKING:
    from pyro_mgp.imputer import MGPImputer

Imputer = TypeVar("Imputer", bound="MGPImputer")

KIND = "MGPImputer"
FORMAT_VERSION = 7
_ARRAYS = "arrays.safetensors"


def write(imputer: MGPImputer, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Write a fitted imputer into the folder `path`, whole or not at all; see `MGPImputer.save`."""
    fields = _settings(imputer) | _fields(imputer) | _refinements(imputer)
    arrays = {name: value.cpu().numpy() for name, value in _tensors(imputer).items()}
    with _storage.atomic_folder(path, overwrite=overwrite) as folder:
        _storage.write_header(folder, KIND, FORMAT_VERSION, fields)
        _storage.write_arrays(folder / _ARRAYS, arrays)


def identity(imputer: MGPImputer) -> str:
    """A name for what a fitted imputer has learnt, the same after `write` and `read`."""
    return fingerprint(sorted(_tensors(imputer).items()))


def _settings(imputer: MGPImputer) -> dict[str, Any]:
    """What the constructor takes."""
    settings = imputer.get_params() | {
        "random_state": imputer.seed_,
        "kernel": imputer.kernel if isinstance(imputer.kernel, str) else None,
        "order": None,
        "specs": None,
    }
    order, specs = imputer.order, imputer.specs or {}
    return {
        "settings": {name: _storage.to_json(value) for name, value in settings.items()},
        "order": None if order is None else [_storage.to_json(label) for label in order],
        "specs": [[_storage.to_json(label), spec.to_dict()] for label, spec in specs.items()],
    }


def _fields(imputer: MGPImputer) -> dict[str, Any]:
    """What fitting found out, besides arrays."""
    return {
        "incomplete": imputer._incomplete,
        "columns": [_storage.to_json(label) for label in imputer._columns],
        "seed": imputer.seed_,
        "n_rows": imputer.chain_.n_rows,
        "sequential": imputer.sequential_,
        "codec": imputer.codec_.to_dict(),
        "target": None if imputer.target_codec_ is None else imputer.target_codec_.to_dict(),
        "wirings": [dataclasses.asdict(wiring) for wiring in imputer._wirings],
        "history": dataclasses.asdict(imputer.history_),
        "feature_names": list(getattr(imputer, "feature_names_in_", [])),
    }


def _refinements(imputer: MGPImputer) -> dict[str, Any]:
    """What the trained chain learnt from its own errors, besides arrays."""
    few_values = [None if few is None else few.to_dict() for few in imputer.few_values_]
    neighbours = imputer.neighbours_
    if neighbours is None:
        return {"few_values": few_values, "characters": None}
    characters = [None if each is None else dataclasses.asdict(each) for each in neighbours.characters]
    return {
        "few_values": few_values,
        "n_neighbours": neighbours.n_neighbours,
        "characters": characters,
    }


def _tensors(imputer: MGPImputer) -> dict[str, Tensor]:
    gaussian = imputer.start_.gaussian
    tensors = {f"chain.{name}": value for name, value in imputer.chain_.state_dict().items()}
    tensors |= {"start.mean": gaussian.mean, "start.covariance": gaussian.covariance}
    if imputer._training is not None:
        tensors |= {f"training.{name}": rows for name, rows in vars(imputer._training).items()}
    if imputer.neighbours_ is not None:
        tensors |= {"near.rows": imputer.neighbours_.rows, "near.residuals": imputer.neighbours_.residuals}
    return tensors


def read(
    cls: type[Imputer], path: str | os.PathLike[str], kernel: KernelFactory | None, device: str
) -> Imputer:
    """Read what `write` wrote; see `MGPImputer.load`."""
    header = _storage.read_header(path, KIND, FORMAT_VERSION)
    arrays = _storage.read_arrays(Path(path) / _ARRAYS)
    try:
        tensors = _on(resolve_device(device), arrays)
        imputer = cls(**_read_settings(header, kernel, device))
        _restore_fields(imputer, header, tensors)
        _restore_chain(imputer, header, tensors)
        _restore_refinements(imputer, header, tensors)
    except (KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"the imputer in {str(path)!r} cannot be restored: {error}") from error
    return imputer


def _on(device: torch.device, arrays: Mapping[str, NDArray[Any]]) -> dict[str, Tensor]:
    return {name: torch.as_tensor(array, device=device) for name, array in arrays.items()}


def _read_settings(header: Mapping[str, Any], kernel: KernelFactory | None, device: str) -> dict[str, Any]:
    settings = header["settings"] | {"device": device, "order": header["order"]}
    settings["specs"] = {
        _storage.from_json(label): ColumnSpec(**spec) for label, spec in header["specs"]
    } or None
    if settings["kernel"] is None:
        if kernel is None:
            raise ValueError("it was fitted with a kernel of your own, pass it: load(path, kernel=...)")
        settings["kernel"] = kernel
    return settings


def _restore_fields(imputer: MGPImputer, header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    target = header["target"]
    imputer.seed_ = header["seed"]
    imputer.codec_ = TableCodec.from_dict(header["codec"])
    imputer.target_codec_ = None if target is None else ColumnCodec.from_dict(target)
    imputer._wirings = [
        Wiring(w["name"], w["column"], tuple(w["inputs"]), tuple(w["unless"])) for w in header["wirings"]
    ]
    imputer.history_ = History(**header["history"])
    imputer._columns = [_storage.from_json(label) for label in header["columns"]]
    imputer._incomplete = header["incomplete"]
    imputer._rules = Rules.parse(imputer.specs, imputer._columns)
    imputer.sequential_ = header["sequential"]
    imputer._training = None
    if "training.values" in tensors:
        names = [field.name for field in dataclasses.fields(Rows)]
        imputer._training = Rows(**{name: tensors[f"training.{name}"] for name in names})
    imputer.n_features_in_ = len(imputer._columns)
    if header["feature_names"]:
        imputer.feature_names_in_ = np.asarray(header["feature_names"], dtype=object)


def _restore_chain(imputer: MGPImputer, header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    gaussian = JointGaussian(tensors["start.mean"], tensors["start.covariance"])
    imputer.start_ = Start(gaussian, drawn=imputer.initial_fill == "linear")
    imputer._factorised = Factorised()
    n_links = len(imputer._wirings)
    n_inducing = len(tensors["chain.links.0.Xu_unconstrained"]) if n_links else 0
    inducing = gaussian.mean.new_zeros(n_inducing, len(gaussian.mean))
    imputer.chain_ = imputer._build(inducing, [1.0] * n_links, header["n_rows"])
    state = {name.removeprefix("chain."): t for name, t in tensors.items() if name.startswith("chain.")}
    imputer.chain_.load_state_dict(state)
    imputer.chain_.eval()


def _restore_refinements(
    imputer: MGPImputer, header: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> None:
    like = tensors["start.mean"]
    imputer.few_values_ = [
        None if few is None else FewValues.from_dict(few, like) for few in header["few_values"]
    ]
    imputer.neighbours_ = None
    if header["characters"] is not None:
        characters = [None if c is None else Character.from_dict(c) for c in header["characters"]]
        near = tensors["near.rows"], tensors["near.residuals"]
        imputer.neighbours_ = Neighbours.of(imputer.chain_, *near, characters, header["n_neighbours"])

"""A fitted imputer as a folder: `header.json` and `arrays.safetensors`, no pickle."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_mgp._support.devices import resolve_device
from pyro_mgp._support.messages import listing
from pyro_mgp.data.codecs import codec_from_dict
from pyro_mgp.data.column_spec import ColumnSpec
from pyro_mgp.data.encoded_table import EncodedTable
from pyro_mgp.data.rules import Rules
from pyro_mgp.data.table import TableCodec
from pyro_mgp.inference.training import History
from pyro_mgp.model.build import LinkSpec
from pyro_mgp.model.chain import Chain
from pyro_mgp.model.kernels import KernelFactory
from pyro_mgp.model.local_parameters import local_parameters
from pyro_mgp.sampling.discrete_support import DiscreteSupport
from pyro_mgp.sampling.initial_fill import InitialFill, JointGaussian
from pyro_mgp.sampling.local_gp import MAX_NEIGHBOURS, LocalGPParams
from pyro_mgp.sampling.neighbours import Neighbours
from pyro_mgp.sampling.sampler import CholeskyCache
from pyro_mgp.settings import check_settings
from pyro_mgp.storage.arrays import Shapes, read_arrays, write_arrays
from pyro_mgp.storage.atomic import atomic_folder
from pyro_mgp.storage.checkpoint import fingerprint
from pyro_mgp.storage.frames import to_json
from pyro_mgp.storage.header import read_header, write_header
from pyro_mgp.storage.untrusted import MALFORMED, build, check, check_among, check_finite

if TYPE_CHECKING:
    from pyro_mgp.imputer import MGPImputer

Imputer = TypeVar("Imputer", bound="MGPImputer")

KIND = "MGPImputer"
FORMAT_VERSION = 10
# Version 7 had no checksums. Up to version 8 a link had one set of local hyperparameters, or null. Up to
# version 9 discrete support was called few values, and each codec of a column had the fields of all kinds.
_OLDER_FORMATS = (7, 8, 9)
_ARRAYS = "arrays.safetensors"
# Parameters of a link whose shape depends on its inducing inputs.
_OF_INDUCING = {"Xu_unconstrained": 1, "u_loc_unconstrained": 1, "u_scale_tril_unconstrained": 2}


def write(imputer: MGPImputer, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Write a fitted imputer into the folder `path`, whole or not at all; see `MGPImputer.save`."""
    fields = _settings(imputer) | _fields(imputer) | _refinements(imputer)
    arrays = {name: value.cpu().numpy() for name, value in _tensors(imputer).items()}
    with atomic_folder(path, overwrite=overwrite) as folder:
        write_arrays(folder / _ARRAYS, arrays)
        write_header(folder, KIND, FORMAT_VERSION, fields, (_ARRAYS,))


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
        "settings": {name: to_json(value) for name, value in settings.items()},
        "order": None if order is None else [to_json(label) for label in order],
        "specs": [[to_json(label), spec.to_dict()] for label, spec in specs.items()],
    }


def _fields(imputer: MGPImputer) -> dict[str, Any]:
    """What fitting found out, besides arrays."""
    return {
        "ranges": [[to_json(k), {"middle": v}] for k, v in imputer._rules.middles.items()],
        "incomplete": imputer._incomplete,
        "columns": [to_json(label) for label in imputer._columns],
        "seed": imputer.seed_,
        "n_rows": imputer.chain_.n_rows,
        "sequential": imputer.sequential_,
        "codec": imputer.codec_.to_dict(),
        "target": None if imputer.target_codec_ is None else imputer.target_codec_.to_dict(),
        "wirings": [dataclasses.asdict(link) for link in imputer._link_specs],
        "history": dataclasses.asdict(imputer.history_),
        "feature_names": list(getattr(imputer, "feature_names_in_", [])),
    }


def _refinements(imputer: MGPImputer) -> dict[str, Any]:
    """What the trained chain learnt from its own errors, besides arrays."""
    discrete_support = [None if few is None else few.to_dict() for few in imputer.discrete_support_]
    neighbours = imputer.neighbours_
    if neighbours is None:
        return {"discrete_support": discrete_support, "characters": None}
    characters = [[dataclasses.asdict(each) for each in of_link] for of_link in neighbours.params]
    return {
        "discrete_support": discrete_support,
        "n_neighbours": neighbours.n_neighbours,
        "characters": characters,
    }


def _tensors(imputer: MGPImputer) -> dict[str, Tensor]:
    gaussian = imputer.initial_fill_.gaussian
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
    header = read_header(path, KIND, FORMAT_VERSION, (_ARRAYS,), _OLDER_FORMATS)
    try:
        header = _upgraded(header)
        imputer = cls(**_read_settings(header, kernel, device))
        check_settings(imputer)
        _restore_fields(imputer, header)
        arrays = read_arrays(Path(path) / _ARRAYS, functools.partial(_check_shapes, imputer, header))
        tensors = _on(resolve_device(device), _checked(arrays))
        _restore_chain(imputer, header, tensors)
        _restore_refinements(imputer, header, tensors)
    except (*MALFORMED, RuntimeError) as error:
        raise ValueError(f"the imputer in {str(path)!r} cannot be restored: {error}") from error
    return imputer


def _upgraded(header: dict[str, Any]) -> dict[str, Any]:
    """Return a header of any readable version with the names of the current one."""
    if "few_values" not in header:
        return header
    settings = dict(header["settings"])
    settings["discrete_support"] = settings.pop("few_values")
    return header | {"settings": settings, "discrete_support": header["few_values"]}


def _n_encoded(imputer: MGPImputer) -> int:
    """Columns of the chain."""
    return imputer.codec_.n_encoded + (imputer.target_codec_ is not None)


def _check_shapes(imputer: MGPImputer, header: Mapping[str, Any], shapes: Shapes) -> None:
    """That arrays have the shapes that the header asks for, before they are read.

    Raises:
        ValueError: They have others.
    """
    width, n_links = _n_encoded(imputer), len(imputer._link_specs)
    expected: dict[str, tuple[int, ...]] = {"start.mean": (width,), "start.covariance": (width, width)}
    if n_links:
        n_inducing = shapes.get("chain.links.0.Xu_unconstrained", (0,))[0]
        check(1 <= n_inducing <= header["n_rows"], f"expected 1 to {header['n_rows']} inducing inputs")
        small = imputer._build(torch.zeros(1, width, dtype=torch.float64), [1.0] * n_links, header["n_rows"])
        for name, tensor in small.state_dict().items():
            depends = _OF_INDUCING.get(name.rsplit(".", 1)[-1], 0)
            expected[f"chain.{name}"] = (*[n_inducing] * depends, *tensor.shape[depends:])
    n_rows = shapes.get("near.rows", (0,))[0]
    if header["characters"] is not None:
        expected |= {"near.rows": (n_rows, width), "near.residuals": (n_links, n_rows)}
    if "training.values" in shapes:
        n_rows = shapes["training.values"][0]
        expected |= {"training.values": (n_rows, width), "training.observed": (n_rows, width)}
        expected["training.keys"] = (n_rows,)
    different = [name for name in {**expected, **shapes} if expected.get(name) != shapes.get(name)]
    if different:
        name = different[0]
        raise ValueError(
            f"array {name[:80]!r} is to have the shape {expected.get(name)}, the file has {shapes.get(name)}"
        )


def _checked(arrays: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
    """Arrays of the right kinds of numbers."""
    for name, array in arrays.items():
        kind = {"training.observed": np.bool_, "training.keys": np.int64}.get(name, np.float64)
        check(array.dtype == kind or name.endswith(".inputs"), f"array {name!r} holds {array.dtype}")
        check_finite(name, array, may_be_nan=name == "near.residuals")
    return arrays


def _on(device: torch.device, arrays: Mapping[str, NDArray[Any]]) -> dict[str, Tensor]:
    return {name: torch.as_tensor(array, device=device) for name, array in arrays.items()}


def _read_settings(header: Mapping[str, Any], kernel: KernelFactory | None, device: str) -> dict[str, Any]:
    settings = header["settings"] | {"device": device, "order": header["order"]}
    specs = build(list[tuple[str | int, dict]], header["specs"], "specs")  # type: ignore[type-arg]
    settings["specs"] = {
        label: build(ColumnSpec, spec, f"spec of {label!r}") for label, spec in specs
    } or None
    if settings["kernel"] is None:
        if kernel is None:
            raise ValueError("it was fitted with a kernel of your own, pass it: load(path, kernel=...)")
        settings["kernel"] = kernel
    return settings


def _restore_fields(imputer: MGPImputer, header: Mapping[str, Any]) -> None:
    target = header["target"]
    imputer.seed_ = build(int, header["seed"], "seed")
    imputer.codec_ = TableCodec.from_dict(header["codec"])
    imputer.target_codec_ = None if target is None else codec_from_dict(target)
    imputer._link_specs = build(list[LinkSpec], header["wirings"], "wirings")
    imputer.history_ = build(History, header["history"], "history")
    imputer._columns = build(list[str | int], header["columns"], "columns")
    imputer._incomplete = build(list[int], header["incomplete"], "incomplete")
    # Older folders may lack ranges; they are then found in each table.
    ranges = build(list[tuple[str | int, dict]], header.get("ranges", []), "ranges")  # type: ignore[type-arg]
    middles = {label: build(tuple[float, float], each.get("middle"), "ranges") for label, each in ranges}
    imputer._rules = dataclasses.replace(Rules.parse(imputer.specs, imputer._columns), middles=middles)
    imputer.sequential_ = build(bool, header["sequential"], "sequential")
    check(build(int, header["n_rows"], "n_rows") >= 1, "n_rows: expected at least one row")
    imputer.n_features_in_ = len(imputer._columns)
    names = build(list[str], header["feature_names"], "feature_names")
    if names:
        imputer.feature_names_in_ = np.asarray(names, dtype=object)
    _check_fields(imputer)


def _check_fields(imputer: MGPImputer) -> None:
    """That what the header says of columns and links fits together.

    Raises:
        ValueError: It does not.
    """
    check_among(imputer._incomplete, len(imputer._columns), "incomplete")
    variables = [label for label in imputer._columns if label not in imputer._rules.not_modelled]
    modelled = [column.name for column in imputer.codec_.columns]
    check(variables == modelled, f"the columns {listing(variables)} are modelled as {listing(modelled)}")
    width = _n_encoded(imputer)
    columns = [link.column for link in imputer._link_specs]
    check_among(columns, width, "columns of links")
    if imputer.target_codec_ is not None:
        check(columns[-1:] == [width - 1] and imputer.target_codec_.width == 1, "the target has no link")
    for link in imputer._link_specs:
        check_among((link.column, *link.inputs), width, f"inputs of {link.name!r}")
        check_among((link.column, *link.unless), width, f"levels before {link.name!r}")
        check(imputer.sequential_ or len(link.inputs) > 0, f"{link.name!r} is predicted from nothing")


def _restore_chain(imputer: MGPImputer, header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    gaussian = JointGaussian(tensors["start.mean"], tensors["start.covariance"])
    _, info = torch.linalg.cholesky_ex(gaussian.covariance)
    check(int(info) == 0, "array 'start.covariance' is no covariance matrix: it is not positive definite")
    imputer.initial_fill_ = InitialFill(gaussian, drawn=imputer.initial_fill == "linear")
    imputer._cholesky_cache = CholeskyCache()
    n_links = len(imputer._link_specs)
    n_inducing = len(tensors["chain.links.0.Xu_unconstrained"]) if n_links else 0
    inducing = gaussian.mean.new_zeros(n_inducing, len(gaussian.mean))
    imputer.chain_ = imputer._build(inducing, [1.0] * n_links, header["n_rows"])
    state = {name.removeprefix("chain."): t for name, t in tensors.items() if name.startswith("chain.")}
    built = {name: buffer.clone() for name, buffer in imputer.chain_.named_buffers()}
    imputer.chain_.load_state_dict(state)
    for name, buffer in built.items():
        check(
            torch.equal(imputer.chain_.get_buffer(name), buffer),
            f"array 'chain.{name}' is not as it was built",
        )
    _check_parameters(imputer.chain_)
    imputer.chain_.eval()
    names = [field.name for field in dataclasses.fields(EncodedTable)]
    with_rows = "training.values" in tensors
    imputer._training = (
        EncodedTable(**{name: tensors[f"training.{name}"] for name in names}) if with_rows else None
    )
    check(with_rows == (imputer.sequential_ and n_links > 0), "training rows belong to a sequential chain")


@torch.no_grad()
def _check_parameters(chain: Chain) -> None:
    """That parameters are finite where their constraints have been put on them, too."""
    with local_parameters():
        for path, module in chain.named_modules():
            for name in getattr(module, "_pyro_params", ()):
                check(bool(getattr(module, name).isfinite().all()), f"{path}.{name} is not finite")


def _restore_refinements(
    imputer: MGPImputer, header: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> None:
    like = tensors["start.mean"]
    discrete_support, characters = header["discrete_support"], header["characters"]
    n_links = len(imputer._link_specs)
    check(
        len(discrete_support) == n_links,
        f"expected discrete_support of {n_links} links, got {len(discrete_support)}",
    )
    imputer.discrete_support_ = [
        None if few is None else DiscreteSupport.from_dict(few, like) for few in discrete_support
    ]
    imputer.neighbours_ = None
    if characters is None:
        return
    check(len(characters) == n_links, f"expected characters of {n_links} links, got {len(characters)}")
    known = [[LocalGPParams.from_dict(each) for each in _as_list(of_link)] for of_link in characters]
    k = build(int, header["n_neighbours"], "n_neighbours")
    enough = (~tensors["near.residuals"].isnan()).sum(1).tolist()
    for link, of_link, n_known in zip(imputer._link_specs, known, enough, strict=True):
        fits = all(len(each.lengthscales) == len(link.inputs) for each in of_link)
        check(fits, f"{link.name!r} has other lengthscales than inputs")
        heard = {(each.freedom, each.scale, each.cut, each.inflation) for each in of_link}
        check(len(heard) <= 1, f"{link.name!r} has metrics that are not heard alike")
        check(not of_link or 1 <= k <= min(n_known, MAX_NEIGHBOURS), f"{link.name!r} lacks neighbours")
    imputer.neighbours_ = Neighbours.of(
        imputer.chain_, tensors["near.rows"], tensors["near.residuals"], known, k
    )


def _as_list(characters: Any) -> list[Any]:
    """Those of a link, as any version of the format has them."""
    if characters is None:
        return []
    return characters if isinstance(characters, list) else [characters]

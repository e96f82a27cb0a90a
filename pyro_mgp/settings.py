"""Parameters of an imputer: valid values, and what "auto" and None become, with the reason, in each fit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import pandas as pd
from pyro.infer import ELBO
from pyro.optim import PyroOptim

from pyro_mgp._support import devices
from pyro_mgp._support.checks import RandomState, at_least, number, one_of, seed_of, truth, within
from pyro_mgp._support.messages import FitWarning, listing, warn_user
from pyro_mgp._support.processes import current
from pyro_mgp.data.column_spec import ColumnSpec, Kind, Label, Specs
from pyro_mgp.data.rules import Rules
from pyro_mgp.model.chain import Precision, Propagate
from pyro_mgp.model.kernels import KernelFactory, resolve_kernel, small_linear_matern32
from pyro_mgp.sampling.fitted_model import FEW_ROWS
from pyro_mgp.sampling.initial_fill import FillName
from pyro_mgp.sampling.local_gp import MAX_NEIGHBOURS

Inputs = Literal["auto", "others", "earlier"]
"""Inputs of a link: all other columns, or complete and earlier columns only."""
Inference = Literal["auto", "closed_form", "svi", "mcmc"]
"""How a chain is trained, or that its lengthscales are drawn as well."""

# Largest size of a discrete support: each draw computes a weight for each of its values.
_LARGEST_SUPPORT = 1000
# Default number of inducing inputs per link.
_N_INDUCING, _N_INDUCING_BESIDES_TREND = 100, 50
# Default number of training steps where local GPs correct the links' remaining errors, and elsewhere. In
# sequential chains nothing corrects the parameters of likelihoods that are not Gaussian. SVI is slower.
STEPS_WITH_NEIGHBOURS, STEPS, STEPS_OF_OTHER_KINDS, STEPS_OF_SVI = 15, 20, 40, 1000


@dataclass(frozen=True)
class Engine:
    """Advanced options of training and sampling; the paper's method is one combination of them.

    Args:
        initial_fill: Values of missing cells before the first sweep: "linear" (joint Gaussian), "mean" or
            "median", taken after the transform of a transformed column. With local GPs, sweeps start from
            sequential draws, of which the linear trends are those of this fill.
        refresh_fill: Whether training redraws the missing cells as it goes, or keeps the initial fill.
        propagate: What later links see in a missing cell: "predictive" draws f + noise, or "latent" f.
        backpropagate: Whether gradients pass through the draws into earlier links.
        joint_draws: Whether one posterior function per imputation is shared by all rows, or each cell is
            drawn alone.
        train_inducing: Whether the inducing inputs are trained.
        n_paths: Monte Carlo paths per row in training.
        target_is_input: Whether the columns' links see the target of `fit(X, y)`, as imputations that are
            to be analysed with it must; the paper's do not.
        weight_decay: Pull of kernels and noises back to their initial values, per unit of learning rate.
        validation_fraction: Share of the observed cells held out to decide when training stops; 0 for none.
        patience: Checks without progress before training stops, five steps apart, by SVI 25.

    Example:
        >>> Engine(propagate="latent").propagate
        'latent'
    """

    initial_fill: FillName = "linear"
    refresh_fill: bool = True
    propagate: Propagate = "predictive"
    backpropagate: bool = False
    joint_draws: bool = True
    train_inducing: bool = False
    n_paths: int = 1
    target_is_input: bool = True
    weight_decay: float = 0.1
    validation_fraction: float = 0.1
    patience: int = 4

    def check(self) -> None:
        """Raise a ValueError or TypeError that names an option with an invalid value."""
        for name in ("n_paths", "patience"):
            at_least(name, getattr(self, name), 1)
        one_of("propagate", self.propagate, get_args(Propagate))
        one_of("initial_fill", self.initial_fill, get_args(FillName))
        for name in ("refresh_fill", "backpropagate", "joint_draws", "train_inducing", "target_is_input"):
            truth(name, getattr(self, name))
        within("weight_decay", self.weight_decay, 0, 1)
        within("validation_fraction", self.validation_fraction, 0, 0.5)

    @property
    def needs_svi(self) -> str:
        """Why the bound of a chain with these options has no closed form; empty if it has."""
        if self.backpropagate:
            return "gradients pass through the draws"
        return f"n_paths={self.n_paths}" if self.n_paths > 1 else ""


PAPER: Mapping[str, Any] = {
    "inference": "svi",
    "kernel": "matern32",
    "inputs": "others",
    "n_inducing": 100,
    "n_neighbors": 0,
    "warp": False,
    "discrete_support": 0,
    "n_sweeps": 1,
    "max_steps": 10_000,
    "learning_rate": 0.01,
    "batch_size": 100,
    "initial_fill": "mean",
    "refresh_fill": False,
    "propagate": "latent",
    "backpropagate": True,
    "joint_draws": False,
    "train_inducing": True,
    "n_paths": 20,
    "target_is_input": False,
    "weight_decay": 0.0,
    "validation_fraction": 0.0,
    "patience": 10_000,
}
"""Settings of the paper's experiments: M = 100, B = 100, S = 20, Adam 0.01, 10,000 iterations."""


def with_engine(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings in which the fields of `Engine` are collected into one `Engine`."""
    own = dict(settings)
    switches = {name: own.pop(name) for name in vars(Engine()) if name in own}
    return own | {"engine": Engine(**switches)} if switches else own


class Parameters:
    """Parameters of `MGPImputer`, whose docstring describes them.

    Not a dataclass: Dask would take fitted imputers with equal parameters for the same object.
    """

    def __init__(
        self,
        *,
        kernel: str | KernelFactory = "auto",
        inputs: Inputs = "auto",
        n_inducing: int | None = None,
        n_neighbors: int = 16,
        warp: bool = True,
        discrete_support: int = 50,
        n_sweeps: int = 5,
        columns: Literal["incomplete", "all"] = "incomplete",
        order: Sequence[Label] | None = None,
        max_steps: int | None = None,
        learning_rate: float | None = None,
        batch_size: int = 2000,
        precision: Precision = "double",
        device: str = "auto",
        random_state: RandomState = None,
        progress: bool = True,
        specs: Specs | None = None,
        add_indicator: bool = False,
        engine: Engine | None = None,
        inference: Inference = "auto",
        optimizer: PyroOptim | None = None,
        loss: ELBO | None = None,
        survival: tuple[Label, Label] | None = None,
        weights: Label | None = None,
        groups: Label | Sequence[Label] | None = None,
        subject: Label | None = None,
        time: Label | None = None,
    ) -> None:
        self.kernel = kernel
        self.inputs = inputs
        self.n_inducing = n_inducing
        self.n_neighbors = n_neighbors
        self.warp = warp
        self.discrete_support = discrete_support
        self.n_sweeps = n_sweeps
        self.columns = columns
        self.order = order
        self.max_steps = max_steps
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.precision = precision
        self.device = device
        self.random_state = random_state
        self.progress = progress
        self.specs = specs
        self.add_indicator = add_indicator
        self.engine = engine
        self.inference = inference
        self.optimizer = optimizer
        self.loss = loss
        self.survival = survival
        self.weights = weights
        self.groups = groups
        self.subject = subject
        self.time = time

    __init__.__qualname__ = "MGPImputer.__init__"  # which errors about unknown arguments name

    def rules(self, columns: Sequence[Label]) -> Rules:
        """Return the rules that the parameters set for a table with some columns; see `Rules.parse`.

        Columns that are not in the table, and specs that contradict `groups` or `subject`, are a ValueError.
        """
        specs = dict(self.specs or {})
        groups = [self.groups] if isinstance(self.groups, str | int) else list(self.groups or ())
        named = [("groups", label) for label in groups]
        named += [(name, own) for name in ("subject", "time") if (own := getattr(self, name)) is not None]
        for name, label in named:
            if label not in columns:
                raise ValueError(f"{name} names column {label!r}, but the table has {listing(columns)}")
        for name, label in named:
            own = specs.get(label, ColumnSpec())
            if name == "time":
                continue
            of_visits = [self.time] if name == "subject" and self.time is not None else []
            time = own.time if not of_visits else self.time
            if own.kind not in (None, Kind.GROUP) or own.time not in (None, time):
                raise ValueError(f"{name} names column {label!r}, whose spec says something else: {own}")
            # Subjects change at rates of their own.
            slopes = dict.fromkeys([*own.slopes, *of_visits])
            specs[label] = replace(own, kind=Kind.GROUP, time=time, slopes=tuple(slopes))
        return Rules.parse(specs, columns, self.survival, self.weights)


def check_settings(parameters: Parameters) -> Engine:
    """Return the engine to use; a ValueError or TypeError names a parameter with an invalid value."""
    for name in ("n_sweeps", "batch_size"):
        at_least(name, getattr(parameters, name), 1)
    for name in ("n_inducing", "max_steps"):
        if getattr(parameters, name) is not None:
            at_least(name, getattr(parameters, name), 1)
    for name, most in (("n_neighbors", MAX_NEIGHBOURS), ("discrete_support", _LARGEST_SUPPORT)):
        if at_least(name, getattr(parameters, name), 0) > most:
            raise ValueError(f"{name} must be at most {most}, got {getattr(parameters, name)}")
    for name in ("warp", "progress", "add_indicator"):
        truth(name, getattr(parameters, name))
    if isinstance(order := parameters.order, str) or not isinstance(order, Iterable | None):
        raise TypeError(f"order must be a list of column labels, got {order!r}")
    if not isinstance(specs := parameters.specs, Mapping | None):
        came = type(specs).__name__
        raise TypeError(f"specs must be by label, such as {{'age': ColumnSpec(lower=0)}}, got {came}")
    one_of("precision", parameters.precision, get_args(Precision))
    one_of("columns", parameters.columns, ("incomplete", "all"))
    one_of("inputs", parameters.inputs, get_args(Inputs))
    if (rate := parameters.learning_rate) is not None and not 0 < number("learning_rate", rate) < math.inf:
        raise ValueError(f"learning_rate must be positive and finite, got {rate}")
    if (outcome := parameters.survival) is not None and not (
        isinstance(outcome, tuple | list)
        and len(outcome) == 2
        and all(isinstance(label, str | int) for label in outcome)
    ):
        raise TypeError(f"survival must be the labels of times and events, (time, event), got {outcome!r}")
    for name in ("weights", "subject", "time"):
        if not isinstance(label := getattr(parameters, name), str | int | None):
            raise TypeError(f"{name} must be the label of a column, got {type(label).__name__}")
    if not isinstance(parameters.groups, str | int | list | tuple | None):
        raise TypeError(f"groups must be labels of columns, got {type(parameters.groups).__name__}")
    if parameters.time is not None and parameters.subject is None:
        raise ValueError("time is the label of the times of visits of a subject: give subject as well")
    engine = Engine() if parameters.engine is None else parameters.engine
    if not isinstance(engine, Engine):
        raise TypeError(f"engine must be a pyro_mgp.Engine or None, got {engine!r}")
    engine.check()
    _check_inference(parameters, engine)
    if parameters.kernel != "auto":
        resolve_kernel(parameters.kernel)
    devices.resolve_device(parameters.device, 0)
    return engine


def _check_inference(parameters: Parameters, engine: Engine) -> None:
    """Raise an error if a chain cannot be trained as asked."""
    inference = parameters.inference
    one_of("inference", inference, get_args(Inference))
    if inference == "closed_form" and engine.needs_svi:
        advice = 'Take inference="auto" or "svi"'
        raise ValueError(f'inference="closed_form" cannot be used: {engine.needs_svi}. {advice}')
    if inference == "mcmc":
        why = engine.needs_svi
        if parameters.inputs == "others":
            why = 'inputs="others", since a joint density is needed: take inputs="auto"'
        elif parameters.kernel != "auto":
            why = 'a kernel of your own: take kernel="auto"'
        if why:
            raise ValueError(f'inference="mcmc" cannot be used with {why}')
    for name, kind in (("optimizer", PyroOptim), ("loss", ELBO)):
        given = getattr(parameters, name)
        if given is not None and inference != "svi":
            raise ValueError(f'{name} needs inference="svi", got inference={inference!r}')
        if not isinstance(given, kind | None):
            raise TypeError(f"{name} must be a {kind.__module__}.{kind.__name__} or None, got {given!r}")
    if callable(getattr(parameters.optimizer, "pt_optim_args", None)):
        raise ValueError("optimizer must have a dict of settings: a chain's parameters have no global names")


def wanted_inputs(parameters: Parameters) -> Inputs:
    """Return the inputs of links that are asked for: drawn lengthscales need a joint density."""
    return "earlier" if parameters.inference == "mcmc" else parameters.inputs


@dataclass(frozen=True)
class Choice:
    """Value of a setting in a fit, with the reason: "as given", or the property of the table that decided."""

    value: Any
    reason: str


@dataclass(frozen=True)
class Settings:
    """Resolved settings of a fit, each with its value and the reason for it."""

    inputs: Choice  # of the links: "others" or "earlier"
    inference: Choice  # how the chain was trained: "closed_form", "svi" or "mcmc"
    kernel: Choice  # name of the kernel, or the user's factory
    n_inducing: Choice  # inducing inputs per link
    max_steps: Choice  # most training steps
    device: Choice  # torch device of the chain
    seed: Choice  # seed that all randomness is keyed by

    def to_frame(self) -> pd.DataFrame:
        """Return one row per setting with its value and the reason."""
        rows = {name: (_named(choice.value), choice.reason) for name, choice in vars(self).items()}
        return pd.DataFrame.from_dict(rows, orient="index", columns=["value", "reason"])

    def __str__(self) -> str:
        return "\n".join(f"{name}={value}: {reason}" for name, value, reason in self.to_frame().itertuples())


def _named(value: Any) -> Any:
    """Return the name of a function or class; return other values unchanged."""
    return getattr(value, "__name__", repr(value)) if callable(value) else value


_GIVEN = "as given"


def choose(
    parameters: Parameters, engine: Engine, inputs: Choice, n_rows: int, *, all_local: bool, shapes: bool
) -> Settings:
    """Resolve the settings that the user left to the package, with a reason for each.

    `all_local` says that all links may have local GPs, `shapes` that some likelihoods have
    parameters besides a noise variance or a single threshold.
    """
    sequential = inputs.value == "earlier"
    return Settings(
        inputs=inputs,
        inference=choose_inference(parameters, engine),
        kernel=choose_kernel(parameters, n_rows, sequential),
        n_inducing=choose_n_inducing(parameters, n_rows, sequential),
        max_steps=choose_max_steps(parameters, engine, n_rows, sequential, all_local, shapes),
        device=choose_device(parameters, n_rows),
        seed=choose_seed(parameters),
    )


def warn_of_inducing_inputs(parameters: Parameters, n_rows: int) -> None:
    """Warn if there are fewer rows than inducing inputs that the user asked for."""
    asked = parameters.n_inducing
    if asked is not None and asked > n_rows:
        message = f"n_inducing={asked} is more than the {n_rows} rows of the table; using {n_rows}"
        warn_user(message, FitWarning)


def choose_inference(parameters: Parameters, engine: Engine) -> Choice:
    """Choose how the chain is trained."""
    if parameters.inference != "auto":
        return Choice(parameters.inference, _GIVEN)
    if engine.needs_svi:
        return Choice("svi", engine.needs_svi)
    return Choice("closed_form", "the evidence bound has a closed form")


def choose_kernel(parameters: Parameters, n_rows: int, is_sequential: bool) -> Choice:
    """Choose the kernel of the links, unless the user gave one."""
    if parameters.kernel != "auto":
        return Choice(parameters.kernel, _GIVEN)
    if is_sequential:
        return Choice("linear+quadratic+matern32", "the default of a joint density")
    if n_rows <= FEW_ROWS:
        return Choice(small_linear_matern32, f"at most {FEW_ROWS} rows: the linear trend is not shrunk")
    return Choice("linear+matern32", f"more than {FEW_ROWS} rows")


def choose_n_inducing(parameters: Parameters, n_rows: int, is_sequential: bool = False) -> Choice:
    """Choose the number of inducing inputs per link, at most `n_rows`."""
    asked = parameters.n_inducing
    if asked is None:
        most = _N_INDUCING_BESIDES_TREND if is_sequential else _N_INDUCING
        return Choice(min(most, n_rows), "the default" if n_rows > most else "all rows of the table")
    return Choice(min(asked, n_rows), _GIVEN if asked <= n_rows else f"the table has {n_rows} rows")


def choose_max_steps(
    parameters: Parameters, engine: Engine, n_rows: int, is_sequential: bool, all_local: bool, shapes: bool
) -> Choice:
    """Choose the maximum number of training steps, fewer where local GPs correct every link."""
    if parameters.max_steps is not None:
        return Choice(parameters.max_steps, _GIVEN)
    if choose_inference(parameters, engine).value == "svi":
        return Choice(STEPS_OF_SVI, "training by SVI")
    corrected = parameters.n_neighbors > 0 and engine.propagate == "predictive" and not is_sequential
    if corrected and n_rows > FEW_ROWS and all_local:
        return Choice(STEPS_WITH_NEIGHBOURS, "local GPs correct every link")
    if is_sequential and shapes:
        return Choice(STEPS_OF_OTHER_KINDS, "likelihoods of some links have parameters to learn")
    return Choice(STEPS, "links have no local GP" if is_sequential else "some links have no local GP")


def choose_device(parameters: Parameters, n_rows: int) -> Choice:
    """Choose the torch device of the chain; a GPU pays from some thousand rows on."""
    device, least = str(devices.resolve_device(parameters.device, n_rows)), devices.ROWS_FOR_GPU
    if parameters.device != "auto":
        return Choice(device, _GIVEN)
    if device.startswith("cuda"):
        return Choice(device, "the first GPU")
    return Choice(device, f"fewer than {least:,} rows" if n_rows < least else "no GPU was found")


def choose_seed(parameters: Parameters) -> Choice:
    """Choose the seed of all random numbers, the same in all processes; raises the errors of `seed_of`."""
    state = parameters.random_state
    reason = "drawn from the given generator" if hasattr(state, "shuffle") else _GIVEN
    reason = "drawn from the operating system" if state is None else reason
    return Choice(current().broadcast_number(seed_of(state)), reason)

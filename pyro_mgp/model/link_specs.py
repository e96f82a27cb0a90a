"""Specifications of the links of a chain: output column, input columns and order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_mgp.data.codecs import ColumnCodec
from pyro_mgp.data.codecs.kinds import GroupCodec
from pyro_mgp.data.codecs.semicontinuous import SemicontinuousCodec
from pyro_mgp.data.column_spec import Kind, Label, Specs
from pyro_mgp.data.encoded_table import EncodedTable
from pyro_mgp.data.groups import WithinGroups
from pyro_mgp.data.table import TableCodec
from pyro_mgp.model.column_order import CLEARLY, MOST_INPUTS, Evidence, best_order
from pyro_mgp.model.kernels import RandomEffects
from pyro_mgp.model.level_order import best_level_order

# Inputs of a link, as a share of the rows, beyond which few of them are expected to matter.
_SPARSE_FROM = 0.2
# Most effects of the main groups in the kernel of a link: a step of training takes the cube of their number.
# Of larger tables a part of these groups is in kernels, whose rows train these.
_MOST_IN_KERNELS = 250
# Number of values from which on a column is not discrete, and need not have all in rows that train kernels.
_DISCRETE = 20
# Variances of its gain, over a few draws under another order, by which a rival may be worse and yet be right.
_VARIANCES = 5.0


@dataclass(frozen=True)
class LinkSpec:
    """The output column and the input columns of one link of the chain."""

    name: str
    """Name of the encoded column that the link predicts."""
    column: int
    """Its number."""
    inputs: tuple[int, ...]
    """Numbers of the encoded columns that the link predicts from."""
    unless: tuple[int, ...] = ()
    """Indicators of earlier levels of the same variable; see `Link`."""
    product_inputs: tuple[int, ...] | None = None
    """Inputs whose products a trend has; None for all."""
    effects: tuple[RandomEffects, ...] = ()
    """Random effects of groups, whose numbers are the last inputs."""
    once_per: int | None = None
    """Numbers of the groups within which the column is constant; None for a cell in each row."""

    @property
    def smooth_inputs(self) -> tuple[int, ...]:
        """Inputs but for the numbers of groups."""
        return self.inputs[: len(self.inputs) - len(self.effects)]


def plan_links(
    codec: TableCodec,
    incomplete: NDArray[np.bool_],
    order: Sequence[Label] | None,
    target: ColumnCodec | None = None,
    target_is_input: bool = True,
    specs: Specs | None = None,
    sequence: Sequence[int] | None = None,
    within: WithinGroups | None = None,
) -> list[LinkSpec]:
    """Return the specification of each link of a table, in the order of the chain, a target last.

    The encoded columns that get a link are `incomplete`, Bool `[D]`, and a target, which is column D, and an
    input of the others if `target_is_input`. They have the `order` of these labels, or of ascending standard
    deviation before scaling; links of a category follow each other. The inputs of a link are all columns that
    its `specs` allow but those of its own variable: the other indicators of a category are missing whenever
    it is. The last indicator has no link; see `with_level_orders`. In a `SequentialChain`, `sequence` are the
    encoded columns with a link, in order: the inputs of each are the earlier ones and those without a link,
    and it has random effects of all groups, but for columns that are constant `within` groups.

    Raises:
        ValueError: If `order` does not name each column with a link exactly once, or one has no predictors.
    """
    groups = codec.groups
    visible = _visible(codec, specs or {})
    has_link, within, is_group = _can_have_link(codec), within or WithinGroups(), np.zeros(len(groups), bool)
    is_group[codec.of_groups] = True
    linked = np.flatnonzero(incomplete & has_link)
    if sequence is not None:
        linked = np.asarray([d for d in sequence if has_link[d]], dtype=np.intp)
    elif order is None:
        linked = _ascending(codec, linked)
    else:
        linked = np.concatenate([np.arange(0), *_ordered(codec, linked, order)])
    extra = (codec.n_encoded,) if target is not None and target_is_input else ()
    link_specs = []
    for i, d in enumerate(linked.tolist()):
        inputs = visible[groups[d]] & (groups != groups[d]) & ~is_group
        if sequence is not None:
            inputs &= ~np.isin(groups, groups[linked[i:]])
        earlier = tuple(np.flatnonzero(groups[:d] == groups[d]).tolist())
        if sequence is None:
            seen = (*np.flatnonzero(inputs).tolist(), *extra)
            link = LinkSpec(codec.names[d], d, seen, earlier)
        else:
            effects = np.flatnonzero(visible[groups[d]] & is_group).tolist()
            link = _with_effects(codec, within, d, np.flatnonzero(inputs).tolist(), effects, earlier)
        link_specs.append(link)
        if not link.inputs and sequence is None:
            raise ValueError(
                f"column {link.name!r} has missing cells, but no other column is left to predict it from: "
                "give its spec more predictors, or let other columns predict"
            )
    if target is None:
        return link_specs
    name = str(target.name)
    while name in codec.names:
        name = f"target {name}"
    last = tuple(np.flatnonzero(visible[-1] & ~is_group).tolist())
    return [*link_specs, LinkSpec(name, codec.n_encoded, last)]


def with_level_orders(
    codec: TableCodec, link_specs: Sequence[LinkSpec], completed: Tensor, observed: Tensor
) -> list[LinkSpec]:
    """Return links with the levels of each category in the best order, and the last level without one.

    The order follows from those of the completed rows `[n, D]` in which the category is observed, given
    Bool `[n, D]`; see `level_order`.
    """
    found, slices = list(link_specs), codec.slices
    for column in codec.columns:
        indicators = range(codec.n_encoded)[slices[column.name]]
        numbers = [i for i, link in enumerate(link_specs) if link.column in indicators]
        if column.indicators is None or len(numbers) < 2:  # both orders of two levels are one model
            continue
        inputs, known = found[numbers[0]].smooth_inputs, completed[observed[:, indicators[0]]]
        level = known[:, list(indicators)].argmax(1)
        order = [indicators[k] for k in best_level_order(known[:, list(inputs)], level, len(indicators))]
        for k, i in enumerate(numbers):
            found[i] = replace(found[i], name=codec.names[order[k]], column=order[k], unless=tuple(order[:k]))
    return found


def with_product_inputs(
    codec: TableCodec, link_specs: Sequence[LinkSpec], completed: Tensor
) -> list[LinkSpec]:
    """Return links with the inputs whose products predict best, given completed rows `[n, D]`.

    Links with few inputs have products of all. Where few of many inputs matter, they are those that are
    clearly correlated with the column, after those that have a link themselves: of several that are
    correlated with each other, none may add much to the others, but all of them together do.
    """
    if max((len(link.smooth_inputs) for link in link_specs), default=0) <= MOST_INPUTS:
        return list(link_specs)
    evidence, found = evidence_of(codec, completed[None]), []
    linked = [link.column for link in link_specs]
    for link in link_specs:
        inputs, best = link.smooth_inputs, None
        if is_sparse(len(inputs), len(completed)):
            best = _correlated(completed, link.column, inputs, linked)
        elif len(inputs) > MOST_INPUTS:
            best = evidence.best_inputs(link.column, inputs)
        found.append(replace(link, product_inputs=None if best is None else tuple(best)))
    return found


def is_sparse(n_inputs: int, n_rows: int) -> bool:
    """Return whether few of a link's inputs are expected to matter: rows are too few to tell more."""
    return n_inputs > max(MOST_INPUTS, _SPARSE_FROM * n_rows)


def _correlated(rows: Tensor, column: int, inputs: Sequence[int], first: Sequence[int]) -> list[int]:
    """Return the inputs, at most `MOST_INPUTS`, most correlated with a column of rows `[n, D]`.

    Of inputs without any correlation one is expected to be among them by chance. Those among the `first`
    ones come first, whatever their correlation.
    """
    centred = rows - rows.mean(0)
    scaled = centred / centred.norm(dim=0).clamp(min=1e-12)
    correlation = (scaled[:, inputs].T @ scaled[:, column]).abs().clamp(max=1 - 1e-12)
    least = torch.special.ndtri(torch.tensor(1 - 0.5 / len(inputs), dtype=rows.dtype))
    clear = correlation.atanh() * max(len(rows) - 3, 1) ** 0.5 > least
    is_first = torch.tensor([d in first for d in inputs])
    ranked = (correlation + is_first.to(correlation)).argsort(descending=True)[:MOST_INPUTS].tolist()
    return sorted(inputs[k] for k in ranked if clear[k] or is_first[k])


def best_plan(
    codecs: Sequence[TableCodec],
    completed: Tensor,
    here: int,
    sequence: list[int],
    incomplete: NDArray[np.bool_],
    every: bool,
    within: WithinGroups | None = None,
) -> tuple[int, list[int]]:
    """Return the number of a table's codec, and the encoded columns with a link, in order.

    They are those of the last plan, `here` and `sequence` (empty without one), unless others are clearly
    better. Codecs differ in their transforms; the last plan's encodes the `completed` rows, whose missing
    cells were drawn S times, `[S, n, D]`. Complete columns before the first `incomplete` one, Bool `[D]`,
    get no link unless `every` column does.
    """
    plan, best = (here, sequence), -math.inf
    for number in sorted(range(len(codecs)), key=lambda number: number != here):
        codec, rows = codecs[number], recoded(codecs[here], codecs[number], completed)
        evidence = evidence_of(codec, rows)
        if number == here and sequence:
            best = log_evidence(codec, evidence, rows, sequence) + CLEARLY
        other = plan_sequence(codec, evidence, incomplete, every, within)
        if (found := log_evidence(codec, evidence, rows, other)) > best:
            plan, best = (number, other), found
    return plan


def plan_sequence(
    codec: TableCodec,
    evidence: Evidence,
    incomplete: NDArray[np.bool_],
    every: bool,
    within: WithinGroups | None = None,
) -> list[int]:
    """Return the encoded columns with a link in a sequential chain, in the order of the largest evidence.

    Complete columns before the first `incomplete` one, Bool `[D]`, get no link unless `every` column does.
    Columns that are constant `within` groups come before others if one of them is incomplete, and times of
    visits and columns that have slopes in groups before those in whose links they are used.
    """
    groups, scale = codec.groups, codec.raw_scale
    holes = {variable: bool(incomplete[groups == variable].any()) for variable in groups.tolist()}
    least = {variable: float(scale[groups == variable].min()) for variable in holes}
    first = [variable for variable in holes if not (every or holes[variable])]
    then = [variable for variable in holes if variable not in first]
    # Evidence of counts, that of their roots, hardly tells whether they come first (`benchmarks/coverage`).
    counts = {variable for variable, own in enumerate(codec.columns) if own.kind is Kind.COUNT}
    then.sort(key=lambda variable: (variable not in counts, least[variable]))
    order = best_order(evidence, first, then)
    labels = [column.name for column in codec.columns]
    is_told = within is not None and any(
        (every or holes[v]) and within.group_of(labels[v]) is not None for v in order
    )
    if is_told or _used_in_groups(codec):
        known = within if within and is_told else WithinGroups()
        order = [labels.index(label) for label in groups_first(codec, known, [labels[v] for v in order])]
    needed = 0 if every else min((i for i, v in enumerate(order) if holes[v]), default=len(order))
    return [d for v in order[needed:] for d in np.flatnonzero(groups == v).tolist()]


def groups_first(codec: TableCodec, within: WithinGroups, labels: Sequence[Label]) -> list[Label]:
    """Return the labels of columns in the order that groups need.

    Columns that are constant within the fewest groups come first, then times of visits and columns that have
    slopes in groups.
    """
    codecs = [own for own in codec.columns if isinstance(own, GroupCodec)]
    sizes, used = {own.name: len(own.levels) for own in codecs}, {*_used_in_groups(codec)}

    def key(label: Label) -> tuple[float, bool]:
        group = within.group_of(label)
        return math.inf if group is None else sizes[group], label not in used

    return sorted(labels, key=key)


def _used_in_groups(codec: TableCodec) -> list[Label]:
    """Return the labels of the columns that hold times of visits, or have slopes in groups."""
    groups = [own for own in codec.columns if isinstance(own, GroupCodec)]
    times = [own.time for own in groups if own.time is not None]
    return [*times, *(label for own in groups for label in own.slopes)]


def rival_sequence(
    codec: TableCodec, completed: Tensor, sequence: list[int], within: WithinGroups | None = None
) -> list[int] | None:
    """Return the order in which the most curved variable comes last; None without a rival.

    Products and curves add most to the evidence of that variable; where all is linear, order does not
    matter. Rows drawn under an order confirm it, and a rival may be better although it is worse on them. By
    how much follows from the variance of its gain Δ over the draws: its own draws have a density that is
    larger by the factor exp(Δ), and a mean gain that is larger by about that variance. The rows `[S, n, D]`
    have missing cells drawn S times under the order `sequence` of the encoded columns with a link.
    """
    evidence, groups = evidence_of(codec, completed), codec.groups
    curvature = {variable: evidence.of_curvature(variable) for variable in dict.fromkeys(groups.tolist())}
    outcome = max(curvature, key=lambda variable: curvature[variable])
    if curvature[outcome] <= CLEARLY or groups[sequence[-1]] == outcome:
        return None
    if within and outcome < len(codec.columns):
        label = codec.columns[outcome].name
        if within.group_of(label) is not None or label in _used_in_groups(codec):
            return None
    rival = [*(d for d in sequence if groups[d] != outcome), *np.flatnonzero(groups == outcome).tolist()]
    gains = np.array([_gain(codec, rows, sequence, rival) for rows in completed.split(1)])
    return rival if gains.mean() + _VARIANCES * gains.var() > 0 else None


def symmetrised_gain(codec: TableCodec, drawn: Sequence[Tensor], sequences: Sequence[list[int]]) -> float:
    """Return by how many nats the second of two orders is better, the mean over draws of either.

    With Δ = log p₂(x) - log p₁(x), E₂[Δ] ≥ log p₂(observed) / p₁(observed) ≥ E₁[Δ] by Jensen's inequality,
    where the expectations are over missing cells drawn under the second and the first order. Rows `[S, n, D]`
    have missing cells drawn S times under each order; sequences are encoded columns with a link.
    """
    return sum(_gain(codec, rows, *sequences) for rows in drawn) / len(drawn)


def _gain(codec: TableCodec, completed: Tensor, sequence: list[int], other: list[int]) -> float:
    """Return by how many nats another order is better on completed rows, `[S, n, D]`."""
    evidence = evidence_of(codec, completed)
    first, second = (log_evidence(codec, evidence, completed, each) for each in (sequence, other))
    return second - first


def evidence_of(codec: TableCodec, completed: Tensor) -> Evidence:
    """Return the evidence of the columns of rows whose missing cells were drawn S times, `[S, n, D]`.

    Counts enter by their roots, whose variance hardly depends on their mean: that of their logarithms is
    small where the mean is large, and a regression of counts would seem to be worse than it is.
    """
    values = completed.clone()
    for column in codec.columns:
        if column.kind is Kind.COUNT:
            here = codec.slices[column.name]
            # Anscombe, Biometrika 35:246-254, 1948
            roots = np.sqrt(column.in_own_units(completed[..., here].numpy()) + 0.375)
            values[..., here] = torch.as_tensor(roots)[..., None]
    values[..., codec.of_groups] = 0.0  # these numbers predict nothing
    has_target = completed.shape[2] > codec.n_encoded
    groups = [*codec.groups.tolist(), *([len(codec.columns)] if has_target else [])]
    binary = [part.is_binary for column in codec.columns for part in column.parts] + [False] * has_target
    places = [codec.slices[each.name].start for each in codec.columns if each.kind is Kind.SEMICONTINUOUS]
    amounts = {indicator + 1: indicator for indicator in places}
    return Evidence(values.flatten(0, 1), groups, binary, completed.shape[1], amounts)


def log_evidence(codec: TableCodec, evidence: Evidence, completed: Tensor, sequence: Sequence[int]) -> float:
    """Return the log evidence of an order of the columns in their own units, nats.

    Takes the evidence of completed rows `[S, n, D]`, and the encoded columns with a link, in order; columns
    without one come before them.
    """
    linked = list(dict.fromkeys(codec.groups[list(sequence)].tolist()))
    order = [v for v in dict.fromkeys(codec.groups.tolist()) if v not in linked] + linked
    slices = [(column, codec.slices[column.name]) for column in codec.columns if column.width]
    slopes = sum(_log_slope(column, completed[..., here]) for column, here in slices)
    return evidence.of_order(order) + slopes


def _log_slope(column: ColumnCodec, cells: Tensor) -> float:
    """Return the mean log Jacobian determinant of the encoding of a column's cells, `[S, n, 1]`."""
    if column.width > 1:
        return 0.0  # plans have the same encoding of such columns
    scale = math.log(float(cells.std().clamp(min=1e-9)))
    own = 0.0
    if column.warp is not None:
        own = float(column.warp.log_slope(column.in_own_units(cells.numpy())).mean())
    return cells.shape[1] * (own - math.log(column.scale[0]) - scale)


def recoded(codec: TableCodec, other: TableCodec, completed: Tensor) -> Tensor:
    """Return rows `[..., D]` that one codec encoded as another would."""
    parts, end = [], codec.n_encoded
    for column, new in zip(codec.columns, other.columns, strict=True):
        cells = completed[..., codec.slices[column.name]]
        if column.warp != new.warp or column.kind is not new.kind:
            numbers = column.in_own_units(cells.numpy())
            if isinstance(new, SemicontinuousCodec):
                numbers = new.in_either_part(numbers)
            elif new.kind is Kind.COUNT:
                numbers = np.clip(np.rint(numbers), *new.drawn_range)
            elif new.kind is Kind.BOOLEAN:
                numbers = np.where(numbers < (new.low + new.high) / 2, new.low, new.high)
            elif new.warp is not None and new.warp.keeps_bounds:
                numbers = np.clip(numbers, new.low, new.high)
            cells = torch.as_tensor(new.standardise(numbers[..., None]))
        parts.append(cells)
    return torch.cat([*parts, completed[..., end:]], dim=-1)


def _visible(codec: TableCodec, specs: Specs) -> NDArray[np.bool_]:
    """Return Bool `[C + 1, D]`: the encoded columns from which C columns and a target may be predicted."""
    labels = [column.name for column in codec.columns]
    visible = np.ones((len(labels) + 1, len(labels)), dtype=bool)
    for label, spec in specs.items():
        if label not in labels:
            continue
        here = labels.index(label)
        if spec.predictors is not None:
            visible[here] = np.isin(np.arange(len(labels)), [labels.index(each) for each in spec.predictors])
        if not spec.predicts:
            visible[:, here] = False
    return visible[:, codec.groups]


def _with_effects(
    codec: TableCodec,
    within: WithinGroups,
    column: int,
    inputs: Sequence[int],
    places: Sequence[int],
    unless: tuple[int, ...],
) -> LinkSpec:
    """Return the link of a column in a sequential chain, given its possible inputs, with random effects.

    The numbers of groups whose effects it may have are in the encoded columns `places`.

    A column that is constant within groups is predicted from others that are, and has the effects of larger
    groups.
    """
    labels = [each.name for each in codec.columns]
    names = [labels[group] for group in codec.groups]
    group, effects, starts = within.group_of(names[column]), list[RandomEffects](), codec.slices
    if group is not None:
        inputs = [d for d in inputs if names[d] in within.constant[group]]
    for own in codec.columns:
        if not isinstance(own, GroupCodec) or starts[own.name].start not in places:
            continue
        if names[column] in within.constant.get(own.name, ()):
            continue
        if group is None or own.name in within.constant[group]:
            slopes = tuple(
                d for label in own.slopes for d in range(codec.n_encoded)[starts[label]] if d in inputs
            )
            effects.append(replace(_intercepts(codec, own), slopes=slopes))
    seen = (*inputs, *(effect.place for effect in effects))
    once_per = None if group is None else starts[group].start
    return LinkSpec(codec.names[column], column, seen, unless, effects=tuple(effects), once_per=once_per)


def main_groups(codec: TableCodec) -> GroupCodec | None:
    """Return the groups that are drawn one by one: subjects of visits, or those with the most effects."""
    groups = [own for own in codec.columns if isinstance(own, GroupCodec) and own.width]
    subjects = [own for own in groups if own.time is not None]
    return max(subjects or groups, key=n_effects, default=None)


def n_effects(column: GroupCodec) -> int:
    """Return the number of random effects of a column of groups in a link."""
    return len(column.levels) * (1 + len(column.slopes))


def rows_in_kernels(codec: TableCodec, values: Tensor) -> Tensor:
    """Return the rows of an encoded table `[n, D]` whose effects are all in kernels, Bool `[n]`."""
    if (own := main_groups(codec)) is None:
        return torch.ones_like(values[:, 0], dtype=torch.bool)
    effects = _intercepts(codec, own)
    return effects.are_in_kernel(values[:, effects.place])


def rows_of_training(codec: TableCodec, table: EncodedTable) -> Tensor | None:
    """Return the numbers of the rows that train kernels: those whose effects are in these, or None for all.

    All are needed if a discrete column does not have all its values in these rows.
    """
    found = rows_in_kernels(codec, table.values)
    if found.all():
        return None
    for column, observed in zip(table.values.T, table.observed.T, strict=True):
        n_values = len(column[observed].unique())
        n_found = len(column[observed & found].unique())
        if n_found < min(n_values, _DISCRETE):
            return None
    return found.nonzero()[:, 0]


def _intercepts(codec: TableCodec, column: GroupCodec) -> RandomEffects:
    """Return the random intercepts of a column of groups."""
    time = None if column.time is None else codec.slices[column.time].start
    most = _MOST_IN_KERNELS // (1 + len(column.slopes))
    is_part = column is main_groups(codec) and len(column.levels) > most
    start, n_in_kernel = codec.slices[column.name].start, most if is_part else None
    return RandomEffects(start, len(column.levels), column.mean[0], column.scale[0], (), time, n_in_kernel)


def _ascending(codec: TableCodec, linked: NDArray[np.intp]) -> NDArray[np.intp]:
    """Sort columns by their standard deviation; a category's indicators stay together, at their smallest."""
    groups, scale = codec.groups, codec.raw_scale
    least = {group: scale[linked[groups[linked] == group]].min() for group in set(groups[linked].tolist())}
    return np.asarray(sorted(linked.tolist(), key=lambda d: (least[groups[d]], groups[d], d)), dtype=np.intp)


def _ordered(codec: TableCodec, linked: NDArray[np.intp], order: Sequence[Label]) -> list[NDArray[np.intp]]:
    labels = [codec.columns[group].name for group in dict.fromkeys(codec.groups[linked].tolist())]
    if len(set(order)) != len(order) or set(order) != set(labels):
        others = set(order) - set(labels)
        are_complete = others and others <= {column.name for column in codec.columns}
        hint = '. Complete columns have one with inputs="earlier" only' if are_complete else ""
        raise ValueError(
            f"order must name each column with a link once: expected {labels} in any order, got {list(order)}"
            f"{hint}"
        )
    columns = [np.arange(codec.n_encoded)[codec.slices[label]] for label in order]
    return [own[np.isin(own, linked)] for own in columns]


def _can_have_link(codec: TableCodec) -> NDArray[np.bool_]:
    """Return Bool `[D]`: all but numbers of groups, and last indicators, which the others determine."""
    found = np.ones(codec.n_encoded, dtype=bool)
    found[[codec.slices[each.name].stop - 1 for each in codec.columns if each.indicators is not None]] = False
    found[codec.of_groups] = False
    return found

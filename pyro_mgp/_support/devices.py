"""Where tensors live."""

from __future__ import annotations

import torch
from torch import Tensor

# A table stays on a GPU whose free memory holds this many copies of it.
_COPIES = 8


def resolve_device(name: str) -> torch.device:
    """The torch device of that name, if this machine has it; "auto" takes a CUDA GPU if there is one.

    Raises:
        ValueError: If this machine has no such device.

    Example:
        >>> resolve_device("cpu")
        device(type='cpu')
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise ValueError(
            f"device must be 'auto', 'cpu' or another one of this machine, got {name!r}"
        ) from error


def home(values: Tensor, device: torch.device) -> torch.device:
    """Where a training table stays: on the device if it fits well, else on the host."""
    if device.type != "cuda":
        return device
    free, _ = torch.cuda.mem_get_info(device)
    return device if _COPIES * values.nbytes < free else torch.device("cpu")

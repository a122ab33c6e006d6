"""Networks that share the weights of another one and work otherwise."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

from engine.diffusion.loading.merging import sharing_copy
from engine.diffusion.loading.unets import require_unet


@dataclass(frozen=True, slots=True, eq=False)
class _Origin:
    """It keeps the network alive, and with it its id from being given to another."""

    network: Any

    def __deepcopy__(self, _memo: Any) -> _Origin:
        return self


_VARIANTS: WeakValueDictionary[tuple[int, Hashable], Any] = WeakValueDictionary()
"""Those that jobs use now, so that equal ones share their calls."""


def variant_of(network: Any, settings: Hashable, change: Callable[[Any], None]) -> Any:
    """The network with layers of its own, which `change` alters; equal settings give the same one
    as long as anybody uses that.

    Raises EngineError for a transformer: what changes layers here knows those of UNets and VAEs.
    """
    require_unet(network)
    key = id(network), settings
    found = _VARIANTS.get(key)
    if found is None:
        found = sharing_copy(network)
        found.variant_of = _Origin(network)
        change(found)
        _VARIANTS[key] = found
    return found

"""Stage 8: windows, the connected parts of bags that an epoch trains on instead of whole bags.

A window grows from a random instance along the edges of its bag's graph. It is a block of patches
or a run of slices, within which a smoothness prior keeps its meaning.
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import breadth_first_order, connected_components

from ..core import Bag, as_array, counted, select_instances
from ..errors import InputError
from ..models import look_up
from .config import RunConfig


def check_window(config: RunConfig) -> None:
    """Refuse windows for a model that needs whole bags.

    Raises:
        InputError: the model of a run with windows cannot be trained on them.
    """
    size = config.training.window
    if size is None:
        return
    model = look_up(config.model).model
    if model.fits_directly:
        reason = "it is fitted in one go, without epochs"
    elif model.order_matters:
        reason = "its output depends on which instances follow one another in a bag"
    elif model.needs_whole_bags:
        reason = "its method needs every instance of a bag at each step"
    elif size < model.min_instances:
        reason = f"it needs {model.min_instances} instances or more"
    else:
        return
    raise InputError(
        f"window is {size}, but {config.model} cannot be trained on windows: "
        f"{reason}. Leave window out, or train another model (--model abmil)"
    )


def window_note(sizes: Sequence[int], *, window: int) -> str:
    """Return a sentence about what windows leave of training bags of these sizes."""
    largest = max(sizes)
    if largest <= window:
        return (
            f"window is {window}, but the largest training bag has {counted(largest, 'instance')}: "
            "windows have no effect"
        )
    larger = sum(size > window for size in sizes)
    used = sum(min(size, window) for size in sizes)
    share = used / sum(sizes)
    return (
        f"an epoch trains on windows of at most {counted(window, 'instance')}: "
        f"{larger:,} of {counted(len(sizes), 'training bag')} are larger, and {used:,} of "
        f"{sum(sizes):,} instances ({share:.0%}) are used"
    )


def draw_window(bag: Bag, *, size: int, generator: torch.Generator) -> Bag:
    """Return a random connected part of a bag; a bag of at most `size` instances as it is.

    Label, weights of edges and order of instances are those of the whole bag. See `window_rows`.
    """
    if len(bag) <= size:
        return bag
    rows = window_rows(bag, size=size, generator=generator)
    return select_instances(bag, torch.from_numpy(rows))


def window_rows(bag: Bag, *, size: int, generator: torch.Generator) -> Int[np.ndarray, " size"]:
    """Return the rows of a random connected part of a bag, in ascending order.

    The part grows from a random instance, its centre, to the instances that are the fewest steps
    away; of those that are equally many steps away, the nearest are taken. If the connected
    component of the centre is too small, the next components follow, the nearest one first. In a
    bag of several slides, those of the same slide come first, then those of the next slides, each
    around a random instance of its own. Without coordinates, distances are random, so that a bag
    without a graph gives a random sample.

    Args:
        bag: A bag of more than `size` instances.
        size: Number of instances to return, at least 1.
        generator: Source of the random instances.
    """
    n = len(bag)
    centre = int(torch.randint(n, (1,), generator=generator))
    distance = _distances(bag, centre, generator)
    graph = _adjacency(bag)
    rows = _grown(graph, centre, size=size, distance=distance)
    if len(rows) == size:
        return np.sort(rows)

    # the component of the centre is too small: order all components from the centre outwards
    count, component = connected_components(graph, directed=False)
    component_distance = np.full(count, np.inf)
    np.minimum.at(component_distance, component, distance)
    component_distance[component[centre]] = -1.0  # first, whatever coincides with the centre
    slide_rank = np.zeros(count, dtype=np.int64)
    if bag.slide is not None and bag.coords is not None:
        slide = as_array(bag.slide)
        slide_rank[component] = (slide - slide[centre]) % len(bag.slides)
    order = np.lexsort((component_distance, slide_rank))
    ends = np.bincount(component, minlength=count)[order].cumsum()

    whole = int(np.searchsorted(ends, size, side="right"))  # components that fit entirely
    is_chosen = np.isin(component, order[:whole])
    remaining = size - int(is_chosen.sum())
    if remaining:
        members = np.flatnonzero(component == order[whole])
        start = int(members[distance[members].argmin()])
        is_chosen[_grown(graph, start, size=remaining, distance=distance)] = True
    return np.flatnonzero(is_chosen)


def _distances(bag: Bag, centre: int, generator: torch.Generator) -> Float[np.ndarray, " n"]:
    """Return the squared distance of each instance to the centre of the window on its slide."""
    n = len(bag)
    if bag.coords is None:
        return torch.rand(n, generator=generator, dtype=torch.float64).numpy()
    coords = as_array(bag.coords).astype(np.float64)
    if bag.slide is None:
        return ((coords - coords[centre]) ** 2).sum(1)
    slide = as_array(bag.slide)
    centres = np.zeros((len(bag.slides), coords.shape[1]))
    for k in np.unique(slide):
        members = np.flatnonzero(slide == k)
        member = int(torch.randint(len(members), (1,), generator=generator))
        centres[k] = coords[members[member]]
    centres[slide[centre]] = coords[centre]
    return ((coords - centres[slide]) ** 2).sum(1)


def _adjacency(bag: Bag) -> csr_array:
    """Return the graph of a bag, of which SciPy reads each edge in both directions."""
    i, j = as_array(bag.edges)
    return coo_array((np.ones(len(i)), (i, j)), shape=(len(bag), len(bag))).tocsr()


def _grown(
    graph: csr_array, start: int, *, size: int, distance: Float[np.ndarray, " n"]
) -> Int[np.ndarray, " rows"]:
    """Return the `size` rows that are the fewest steps from `start`, ties by distance.

    Fewer rows are returned if fewer are connected to `start`. Any part of the last level leaves the
    rows connected, because all earlier levels are complete.
    """
    order, predecessors = breadth_first_order(graph, start, directed=False)
    predecessors = np.asarray(predecessors)  # None only if they are declined
    if len(order) <= size:
        return order
    position = np.empty(len(distance), dtype=np.int64)
    position[order] = np.arange(len(order))
    # non-decreasing: a breadth-first search visits the successors of one row after another
    predecessor_position = position[predecessors[order[1:]]]
    level_start = 0
    level_end = 1
    while level_end < size:
        # the next level holds the rows whose predecessor is in this one
        next_end = 1 + int(np.searchsorted(predecessor_position, level_end))
        level_start = level_end
        level_end = next_end
    level = order[level_start:level_end]
    nearest = level[np.argsort(distance[level], kind="stable")]
    return np.concatenate([order[:level_start], nearest[: size - level_start]])

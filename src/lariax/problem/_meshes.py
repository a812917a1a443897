"""Arrays on a mesh of devices.

A mesh has axes of two kinds. On explicit ones, those of `jax.make_mesh`, the type of an array says how it is sharded
and every operation must say what becomes of it; on automatic ones the compiler finds out. The user's functions see
single samples and know of no mesh, so inside all axes are automatic: arrays are given to a mesh of the same devices
with automatic axes, which moves nothing, and answers go back to where x0 is.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from math import prod
from typing import Any, ParamSpec, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, PyTree

Axes = tuple[str, ...]
P = ParamSpec("P")
T = TypeVar("T")


def is_sharded(leaf: Any) -> bool:
    """Whether it is an array on a mesh."""
    return (
        isinstance(leaf, jax.Array)
        and not isinstance(leaf, jax.core.Tracer)
        and isinstance(leaf.sharding, NamedSharding)
        and isinstance(leaf.sharding.mesh, Mesh)
    )


def automatic(tree: PyTree) -> PyTree:
    """The same arrays, on meshes whose axes are automatic. Nothing moves; without such a mesh, the very same tree."""

    def is_explicit(leaf: Any) -> bool:
        return is_sharded(leaf) and not _is_automatic(leaf.sharding.mesh)

    def converted(leaf: Any) -> Any:
        if not is_explicit(leaf):
            return leaf
        return jax.device_put(leaf, NamedSharding(_automatic(leaf.sharding.mesh), leaf.sharding.spec))

    return jax.tree.map(converted, tree) if any(map(is_explicit, jax.tree.leaves(tree))) else tree


def _is_automatic(mesh: Any) -> bool:
    return all(kind == AxisType.Auto for kind in mesh.axis_types)


def _automatic(mesh: Mesh) -> Mesh:
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))


def automatic_axes(function: Callable[P, T]) -> Callable[P, T]:
    """Within the function the mesh that somebody has set (`jax.set_mesh`) has automatic axes."""

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        axes = jax.sharding.get_abstract_mesh().axis_types
        if AxisType.Explicit not in axes:  # of no mesh, or within `shard_map`
            return function(*args, **kwargs)
        if any(map(_is_traced, jax.tree.leaves((args, kwargs)))):
            return _traced(function, args, kwargs)
        try:
            mesh = jax.sharding.get_mesh()
        except ValueError:  # inside jit, with nothing that is traced
            return function(*args, **kwargs)
        with jax.set_mesh(_automatic(mesh)):
            return function(*args, **kwargs)

    return called


def _is_traced(leaf: Any) -> bool:
    return isinstance(leaf, jax.core.Tracer)


def _traced(function: Callable[..., T], args: Any, kwargs: Any) -> T:
    """Inside vmap (of seeds along the mesh, say) and jit: what is traced has its axes in its type."""
    own, others = eqx.partition((args, kwargs), _is_traced)
    rest: list[Any] = []

    def inside(own: PyTree) -> PyTree:
        args, kwargs = eqx.combine(own, others)
        found, other = eqx.partition(function(*args, **kwargs), eqx.is_array)
        rest.append(other)
        return found

    return eqx.combine(jax.sharding.auto_axes(inside, out_sharding=PartitionSpec())(own), rest[0])


def mesh_of(tree: PyTree) -> Mesh | None:
    """The mesh that arrays are on, with automatic axes; None: they are on one device each."""
    leaves = jax.tree.leaves(tree, is_leaf=_knows_its_mesh)
    meshes = {_automatic(leaf.sharding.mesh) for leaf in leaves if is_sharded(leaf)}
    meshes |= {leaf.mesh for leaf in leaves if _knows_its_mesh(leaf)}
    if len(meshes) > 1:
        raise ValueError(
            f"x0 and the samples are on {len(meshes)} meshes, {', '.join(str(dict(m.shape)) for m in meshes)}. Put all "
            "of them on one, jax.device_put(array, NamedSharding(mesh, spec)), whose axes may be used by either."
        )
    return next(iter(meshes), None)


def _knows_its_mesh(node: Any) -> bool:
    """A source whose rows come to a mesh from the host."""
    return isinstance(getattr(node, "mesh", None), Mesh)


def on_mesh(x: PyTree[Array], mesh: Mesh | None) -> PyTree[Array]:
    """The same, whole on every device of the mesh where it is on none."""
    if mesh is None:
        return x
    whole = NamedSharding(mesh, PartitionSpec())
    return jax.tree.map(lambda leaf: leaf if is_sharded(leaf) else jax.device_put(leaf, whole), x)


Home = tuple[Any, ...]
"""Where the leaves of x0 are: the sharding of each; None: on no mesh."""


def home_of(x: PyTree) -> Home:
    return tuple(leaf.sharding if is_sharded(leaf) else None for leaf in jax.tree.leaves(x))


def at_home(x: PyTree[Array], home: Home) -> PyTree[Array]:
    """The arrays of an answer where those of x0 are."""

    def moved(leaf: Array, sharding: Any) -> Array:
        if sharding is not None:
            return jax.device_put(leaf, sharding)
        return jnp.asarray(np.asarray(leaf)) if is_sharded(leaf) else leaf

    leaves, structure = jax.tree.flatten(x)
    with jax.set_mesh(Mesh(np.empty((), object), ())):
        return jax.tree.unflatten(structure, list(map(moved, leaves, home)))


def axes_of(entry: Any) -> Axes:
    """The axes that one entry of a `PartitionSpec` names."""
    if entry is None or entry is PartitionSpec.UNCONSTRAINED:
        return ()
    return (entry,) if isinstance(entry, str) else tuple(entry)


def splits_of(array: Array) -> tuple[Axes, ...]:
    """For each axis of an array, the mesh's axes that it is cut along. Those of length 1 cut nothing."""
    if not is_sharded(array):
        return ((),) * array.ndim
    sharding: Any = array.sharding
    mesh, spec = sharding.mesh, tuple(sharding.spec)
    full = spec + (None,) * (array.ndim - len(spec))
    return tuple(tuple(axis for axis in axes_of(entry) if mesh.shape[axis] > 1) for entry in full)


@dataclass(frozen=True)
class RowShards:
    """How the rows of some arrays, all of them alike, are cut."""

    mesh: Mesh
    axes: Axes  # that the rows are cut along
    specs: tuple[PartitionSpec, ...]  # of the arrays, as leaves

    @property
    def count(self) -> int:
        return prod(self.mesh.shape[axis] for axis in self.axes)

    @classmethod
    def of(cls, arrays: PyTree) -> "RowShards | None":
        """None: the rows are in one piece."""
        leaves = jax.tree.leaves(arrays)
        mesh = mesh_of(leaves)
        cuts = {splits_of(leaf)[0] for leaf in leaves}
        if mesh is None or cuts == {()}:
            return None
        if len(cuts) > 1:
            raise ValueError(
                f"the arrays of a source are cut along different axes, {cuts}. Give the first axis of all of them the "
                "same place in their PartitionSpec."
            )
        return cls(mesh, cuts.pop(), tuple(PartitionSpec(*splits_of(leaf)) for leaf in leaves))


ROWS = "rows"
"""The axis of the mesh of all devices on which the rows of all processes are."""


def all_devices() -> Mesh:
    return Mesh(np.asarray(jax.devices()), (ROWS,), axis_types=(AxisType.Auto,))


def cut_alike(arrays: PyTree) -> PyTree:
    """The first rows that each process has: as many in all of them, and for all of their devices."""
    rows = jax.tree.leaves(arrays)[0].shape[0]
    if jax.process_count() > 1:
        rows = int(np.min(multihost_utils.process_allgather(np.int32(rows))))
    rows -= rows % jax.local_device_count()
    return jax.tree.map(lambda leaf: leaf[:rows], arrays)


def joined_rows(arrays: PyTree) -> PyTree[Array]:
    """The rows that each process has, as arrays over the devices of all processes. Called by all of them."""
    mesh = all_devices()
    rows, devices = jax.tree.leaves(arrays)[0].shape[0], jax.local_device_count()
    counts = [rows]
    if jax.process_count() > 1:
        counts = np.ravel(multihost_utils.process_allgather(np.int32(rows))).tolist()
    if len(set(counts)) > 1 or rows % devices:
        raise ValueError(
            f"every process must have as many rows, and as many for each of its {devices} devices, found {counts}. "
            "Leave some out, or repeat some."
        )
    sharding = NamedSharding(mesh, PartitionSpec(ROWS))
    return jax.tree.map(lambda leaf: jax.make_array_from_process_local_data(sharding, np.asarray(leaf)), arrays)

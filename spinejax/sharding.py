"""Where arrays lie on several devices: rules from axis letters to a mesh.

Array names end in their axes (`spinejax/axes.py`), and these letters are all
the annotation there is. `RULES` says which of them are split over which axis
of the mesh: `down_DF` along F over `model`, a cache [B, G, T, C] along B over
`data` and along G over `model`; `norm_D` is copied to every device.

  data   splits the requests of a batch
  model  splits groups of heads, feed-forward and vocabulary (the tensor
         parallelism of Megatron-LM), and the tapped features, whose
         projection is the largest matrix of a drafter

The functions of `target`, `drafters`, `verify` and `decode` run under plain
`jax.jit`, and XLA partitions them from where their arguments lie:

  mesh = make_mesh('data=2,model=4')
  target = load_target(path, mesh=mesh)
  draft = load_drafter(path, target)  # lies where its target does,
  generate(target, draft, prompts)  # and so do the caches

The same code runs on one CPU, on host devices forced in a test, on several
GPUs and on a slice of TPUs. Sizes that do not divide are refused: a target of
8 key/value heads can be split over 2, 4 or 8 devices.

What a round costs in collectives, counted in compiled programs: two
all-reduces of [B, K, D] a layer of target or drafter; one for the embedding
and three for a DSpine's tables; two gathers of a number a row and device for
the choice of a token, and where tokens are chosen one after the other (Domino,
DSpark) one all-reduce more for each. No weight, no cache and no logits are
gathered, but for logits that top-p has to sort; top-k alone sums counts.
DSpine's injection (R and M) is copied: to split M would add an all-reduce to
every draft layer.
"""

import re
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jax.tree_util import DictKey, GetAttrKey

from spinejax.errors import InputError

AXES = DATA, MODEL = 'data', 'model'

# Letters that are not listed are not split.
RULES = {
  'B': DATA,
  'F': MODEL,
  'G': MODEL,
  'P': MODEL,
  'V': MODEL,
  'X': MODEL,
}
_CALLED = {
  'B': 'the batch',
  'F': 'the feed-forward width',
  'G': 'key/value heads',
  'P': 'the tapped features',
  'V': 'the vocabulary',
  'X': 'the query heads',
}
# Fields of `KVCache`, which are called by their use: an array a layer.
_LETTERS = {'k': 'BGTC', 'v': 'BGTC'}
_SIZE = re.compile(rf'({DATA}|{MODEL})=([1-9][0-9]{{0,5}})')


def make_mesh(spec: str) -> Mesh | None:
  """A mesh from its sizes: 'model=2', 'data=8' or 'data=2,model=4'.

  Takes the first devices there are. '' gives None, which stands for the
  default device wherever a mesh is asked for.

  Raises:
    InputError: the sizes are not understood, or exceed the devices.
  """
  if not spec:
    return None
  sizes = {}
  for part in spec.split(',') if isinstance(spec, str) else ('',):
    match = _SIZE.fullmatch(part)
    if match is None or match[1] in sizes:
      raise InputError(
        f'mesh = {spec!r}, expected sizes of {DATA} and {MODEL} such as '
        f"'{MODEL}=2' or '{DATA}=2,{MODEL}=4'"
      )
    sizes[match[1]] = int(match[2])
  shape = tuple(sizes.get(axis, 1) for axis in AXES)
  need, have = shape[0] * shape[1], jax.device_count()
  if need > have:
    raise InputError(f'mesh = {spec!r} needs {need} devices, there are {have}')
  auto = (AxisType.Auto,) * 2  # XLA partitions
  return jax.make_mesh(shape, AXES, auto, devices=jax.devices()[:need])


def mesh_of(x: jax.Array) -> Mesh | None:
  """The mesh that an array lies on; None if it is on one device."""
  where = x.sharding
  return where.mesh if isinstance(where, NamedSharding) else None


def mesh_in(tree: Any) -> AbstractMesh | None:
  """The mesh on which a program computes these arrays, or None.

  JAX keeps it in the types of all that is computed from arguments on a mesh.
  """
  meshes = (jax.typeof(x).sharding.mesh for x in jax.tree.leaves(tree))
  return next((mesh for mesh in meshes if mesh.axis_names == AXES), None)


def partition(letters: str) -> P:
  """How an array is split whose axes are `letters`, one character each."""
  return P(*map(RULES.get, letters))


def shardings(tree: Any, mesh: Mesh | AbstractMesh) -> Any:
  """The sharding of every array of a tree, by the name of its field.

  Takes arrays, or the shapes that `jax.eval_shape` gives. An array whose name
  does not tell its axes is copied to every device.

  Raises:
    InputError: an axis cannot be split evenly, or the mesh is not of the kind
      that `make_mesh` makes.
  """
  if getattr(mesh, 'axis_names', None) != AXES:
    raise InputError(f'mesh = {mesh}, expected what make_mesh returns')
  return jax.tree_util.tree_map_with_path(
    lambda path, x: NamedSharding(mesh, _spec(path, x.shape, mesh)), tree
  )


def shard(tree: Any, mesh: Mesh | None, dtype=None) -> Any:
  """A tree of arrays, each put straight to where it belongs.

  Args:
    tree: JAX or NumPy arrays; one that occurs twice stays one.
    mesh: None puts them on the default device.
    dtype: what they are cast to, one after the other on the host; None leaves
      them as they are.

  Raises:
    InputError: as `shardings`, before anything is moved.
  """
  placed = {}

  def put(x, where=None):
    if id(x) not in placed:
      value = x if dtype is None else np.asarray(x, dtype)
      placed[id(x)] = jax.device_put(value, where)
    return placed[id(x)]

  if mesh is None:
    return jax.tree.map(put, tree)
  return jax.tree.map(put, tree, shardings(tree, mesh))


def constrain(tree: Any) -> Any:
  """Keeps arrays where their names say, in a program that runs on a mesh.

  XLA is free to lay out what a program returns. The state of a loop must stay
  as it is: otherwise the next call compiles anew, and it cannot be donated.
  """
  mesh = mesh_in(tree)
  if mesh is None:
    return tree
  return jax.lax.with_sharding_constraint(tree, shardings(tree, mesh))


def hint(x: jax.Array, letters: str) -> jax.Array:
  """Splits x as an array of these axes, in a program that runs on a mesh."""
  mesh = mesh_in(x)
  if mesh is None:
    return x
  where = NamedSharding(mesh, partition(letters))
  return jax.lax.with_sharding_constraint(x, where)


def _spec(path, shape: tuple[int, ...], mesh: Mesh | AbstractMesh) -> P:
  """How the array at `path` is split."""
  field = _field(path)
  letters = _LETTERS.get(field, field.rpartition('_')[2])
  if len(letters) != len(shape):
    return P()
  spec = partition(letters)
  for letter, size, axis in zip(letters, shape, spec, strict=True):
    if axis is not None and size % mesh.shape[axis]:
      raise InputError(
        f'mesh: {_CALLED[letter]} ({size} in {field}) cannot be split evenly '
        f'over {axis}={mesh.shape[axis]}'
      )
  return spec


def _field(path) -> str:
  """The innermost name on the way to an array; '' if there is none."""
  for key in reversed(path):
    match key:
      case GetAttrKey(name=name) | DictKey(key=str(name)):
        return name
  return ''

"""Compiling for accelerators that are not there.

Needs the packages of the extra `aot`: libtpu for TPUs, JAX's CUDA plugin for
the H100. Nothing runs; what comes out are the errors of the real compilers,
and their own figures of memory.
"""

import os
from collections.abc import Callable

import jax
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

from spinejax.errors import InputError

# The smallest slice of each kind.
_TPUS = {
  'v5e': 'v5e:1x1',
  'v6e': 'v6e:1x1',
  'v5p': 'v5p:1x1x1',
  'tpu7x': 'tpu7x:1x1x1',
}
TARGETS = ('h100', *_TPUS)

# Of an H100 SXM, from its data sheet and CUDA's device properties.
_H100 = """
gpu_device_info {
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: 233472
  threads_per_core_limit: 2048
  core_count: 132
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000
  l2_cache_size: 52428800
  clock_rate_ghz: 1.98
  device_memory_size: 84942979072
  shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 minor: 0 }
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""


def device(target: str):
  """A device that can only be compiled for.

  Raises:
    InputError: not one of `TARGETS`, or its compiler is not installed.
  """
  if target not in TARGETS:
    raise InputError(
      f'target = {target!r}, expected one of {", ".join(TARGETS)}'
    )
  # libtpu asks the cloud for its machine, and locks this one, unless told not
  # to; it reads these when it is loaded.
  os.environ.setdefault('TPU_SKIP_MDS_QUERY', '1')
  os.environ.setdefault('ALLOW_MULTIPLE_LIBTPU_LOAD', '1')
  try:
    if target == 'h100':
      found = topologies.get_topology_desc(
        platform='cuda', target_config=_H100, topology='1x1x1'
      )
    else:
      found = topologies.get_topology_desc(
        platform='tpu', topology_name=_TPUS[target]
      )
  except Exception as error:
    raise InputError(
      f'target = {target!r}: its compiler does not load ({error}); '
      "it comes with pip install 'spinejax[aot]'"
    ) from error
  return found.devices[0]


def compile_for(
  target: str, function: Callable, *args, **static
) -> jax.stages.Compiled:
  """A jitted function compiled for one device of a target.

  Args:
    function: what `jax.jit` returned.
    args: as for a call. Arrays may be `jax.ShapeDtypeStruct`s; what has no
      shape is static.
    static: static keyword arguments.
  """
  sharding = SingleDeviceSharding(device(target))

  def placed(x):
    if not hasattr(x, 'shape'):
      return x
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

  platform = 'cuda' if target == 'h100' else 'tpu'
  traced = function.trace(*jax.tree.map(placed, args), **static)
  return traced.lower(lowering_platforms=(platform,)).compile()

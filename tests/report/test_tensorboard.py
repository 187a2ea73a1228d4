"""Event files: TensorBoard's own reader finds what was written."""

import io
import os
import subprocess
import sys

import jax.numpy as jnp
import matplotlib.image
import numpy as np
import pytest
from tensorboard.backend.event_processing import event_accumulator

from spinejax.report import tensorboard


def read(folder):
  return event_accumulator.EventAccumulator(str(folder)).Reload()


def texts(folder, tag):
  events = read(folder).Tensors(f'{tag}/text_summary')
  return [e.tensor_proto.string_val[0].decode() for e in events]


def test_scalars_of_any_kind(tmp_path):
  with tensorboard.Writer(tmp_path / 'new') as writer:
    writer.scalars(3, {'loss/ce': 0.5, 'steps': np.int64(7)})
    writer.scalars(4, {'loss/ce': jnp.bfloat16(0.25)})
  events = read(tmp_path / 'new')
  assert sorted(events.Tags()['scalars']) == ['loss/ce', 'steps']
  assert [(e.step, e.value) for e in events.Scalars('loss/ce')] == [
    (3, 0.5),
    (4, 0.25),
  ]


def test_image_keeps_its_pixels(tmp_path):
  image = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
  with tensorboard.Writer(tmp_path) as writer:
    writer.image(2, 'acceptance', image)
  (event,) = read(tmp_path).Images('acceptance')
  assert (event.step, event.height, event.width) == (2, 5, 7)
  stored = matplotlib.image.imread(io.BytesIO(event.encoded_image_string))
  np.testing.assert_array_equal((stored[..., :3] * 255).round(), image)


@pytest.mark.parametrize(
  ('image', 'got'),
  [
    (np.zeros((5, 7, 3)), 'float64 [5, 7, 3]'),
    (np.zeros((3, 5, 7), np.uint8), 'uint8 [3, 5, 7]'),
    (np.zeros((5, 7), np.uint8), 'uint8 [5, 7]'),
  ],
)
def test_image_of_another_layout_is_refused(tmp_path, image, got):
  with (
    tensorboard.Writer(tmp_path) as writer,
    pytest.raises(ValueError, match='^x: ') as caught,
  ):
    writer.image(0, 'x', image)
  assert str(caught.value) == f'x: expected a uint8 [H, W, 3] image, got {got}'


def test_text(tmp_path):
  with tensorboard.Writer(tmp_path) as writer:
    writer.text(1, 'sample', 'some *text*')
  assert texts(tmp_path, 'sample') == ['some *text*']


def test_config_is_a_table_of_dotted_keys(tmp_path):
  with tensorboard.Writer(tmp_path) as writer:
    writer.config({'train': {'rate': 1e-3, 'taps': (1, 2)}, 'name': 'a|b'})
  assert texts(tmp_path, 'config') == [
    '| field | value |\n'
    '| --- | --- |\n'
    '| train.rate | `0.001` |\n'
    '| train.taps | `[1, 2]` |\n'
    '| name | `"a\\|b"` |'
  ]


def test_flush_makes_points_readable_before_closing(tmp_path):
  writer = tensorboard.Writer(tmp_path, flush_seconds=600)
  for step in range(30):
    writer.scalars(step, {'loss': step})
  writer.flush()
  assert [e.value for e in read(tmp_path).Scalars('loss')] == list(range(30))
  writer.scalars(30, {'loss': 30})
  writer.close()
  assert [e.value for e in read(tmp_path).Scalars('loss')] == list(range(31))


def test_a_run_resumed_within_a_second_keeps_its_points(tmp_path):
  for step in range(3):
    with tensorboard.Writer(tmp_path) as writer:
      writer.scalars(step, {'loss': step})
  assert [e.step for e in read(tmp_path).Scalars('loss')] == [0, 1, 2]


def test_a_closed_writer_stays_closed(tmp_path):
  writer = tensorboard.Writer(tmp_path)
  writer.close()
  writer.close()
  with pytest.raises(ValueError, match='the writer is closed') as caught:
    writer.scalars(0, {'loss': 1})
  assert str(caught.value) == f'{tmp_path}: the writer is closed'
  assert len(os.listdir(tmp_path)) == 1


def test_tensorflow_is_not_imported():
  root = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
  code = (
    'import sys; import spinejax.report;'
    'print([m for m in sys.modules if m.split(".")[0] in'
    ' ("tensorflow", "torch", "tensorboard")])'
  )
  done = subprocess.run(
    [sys.executable, '-c', code],
    env=os.environ | {'PYTHONPATH': root, 'JAX_PLATFORMS': 'cpu'},
    capture_output=True,
    text=True,
    check=True,
  )
  assert done.stdout == '[]\n'

"""TensorBoard's page in a browser: the panels of a run appear.

Needs Chromium and its driver from the system, and the extra `browser`:
`make test-browser` installs both.
"""

import jax
import jax.numpy as jnp
import pytest
from selenium import webdriver
from selenium.common.exceptions import TimeoutException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

from spinejax.report import profile
from tests.report import board

SECONDS = 90
# All text of a page, inside of shadow roots and frames of its own, too.
_TEXT = """
const seen = [];
function walk(node) {
  if (node.nodeType === Node.TEXT_NODE) seen.push(node.data);
  if (['SCRIPT', 'STYLE'].includes(node.nodeName)) return;
  if (node.shadowRoot) walk(node.shadowRoot);
  if (node.nodeName === 'IFRAME' && node.contentDocument)
    walk(node.contentDocument);
  node.childNodes.forEach(walk);
}
walk(document);
return seen.join(' ');
"""
_LOADED = """
const found = [];
function walk(node) {
  if (node.nodeName === 'IMG' && node.naturalWidth > 300) found.push(node.src);
  if (node.shadowRoot) walk(node.shadowRoot);
  node.childNodes.forEach(walk);
}
walk(document);
return found.length;
"""


@pytest.fixture(scope='module')
def shown(tmp_path_factory):
  root = tmp_path_factory.mktemp('board')
  board.write_runs(root)
  run = root / 'decode' / 'first' / 'dspine'
  work = jax.jit(lambda x: x @ x)
  profile.record(run, lambda: work(jnp.ones((64, 64))))
  with board.serve(root) as found:
    yield found


@pytest.fixture(scope='module')
def page(shown):
  options = webdriver.ChromeOptions()
  # Root may not use the sandbox; a container's /dev/shm is small.
  for flag in ('headless=new', 'no-sandbox', 'disable-dev-shm-usage',
               'disable-gpu', 'window-size=1600,2400'):  # fmt: skip
    options.add_argument(f'--{flag}')
  driver = webdriver.Chrome(options, Service('/usr/bin/chromedriver'))
  try:
    yield driver
  finally:
    driver.quit()


@pytest.mark.parametrize(
  'panel, words, pictures',
  (
    ('scalars', ('humaneval', 'tokens_per_round'), 0),
    ('images', ('acceptance_by_position', 'timeline'), 2),
    ('text', ('proposed and accepted', '🟩🟩🟦🟥'), 0),
    ('hparams', ('loss.alpha', 'dspine', 'tokens_per_round'), 0),
    ('profile', ('Overview Page', 'decode/first/dspine/20'), 0),
  ),
)
def test_panel(shown, page, panel, words, pictures):
  page.get(f'{shown.url}#{panel}')
  page.refresh()  # the fragment alone loads nothing

  def complete(driver):
    text = driver.execute_script(_TEXT)
    return all(word in text for word in words) and (
      driver.execute_script(_LOADED) >= pictures
    )

  try:
    WebDriverWait(page, SECONDS, poll_frequency=0.5).until(complete)
  except TimeoutException:
    pytest.fail(f'{panel} shows: {page.execute_script(_TEXT)[-2000:]}')

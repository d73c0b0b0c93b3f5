// The page. The address selects the view: `#/` questions, `#/play/ID` an episode, `#/replay`
// recordings, `#/replay/RUN` those of a run.

import * as api from './api.js';
import { h } from './dom.js';
import { bind, listen } from './keys.js';
import { showPlay } from './play.js';
import { showQuestions } from './questions.js';
import { showReplay } from './replay.js';

const main = document.querySelector('#main');
const fault = document.querySelector('#fault');
let info = null;
let settings = null;
let leaving = new AbortController();

async function show() {
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  fault.hidden = true;
  const address = location.hash;
  const replay = /^#\/replay(?:\/(.+))?$/.exec(address);
  for (const link of document.querySelectorAll('nav a')) {
    if ((link.dataset.view === 'replay') === Boolean(replay)) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
  try {
    info ??= await api.info();
    settings ??= { reward_profile: info.default_reward_profile, step_budget: info.default_step_budget };
    const episode = /^#\/play\/(.+)$/.exec(address);
    if (signal.aborted) return;
    scrollTo(0, 0);
    if (episode) await showPlay(main, { settings, signal }, decodeURIComponent(episode[1]));
    else if (replay) await showReplay(main, { signal }, decodeURIComponent(replay[1] ?? ''));
    else await showQuestions(main, { info, settings, signal });
    if (!signal.aborted) document.title = `${main.querySelector('h1').textContent} · SQLEnv`;
  } catch (error) {
    if (!signal.aborted) showError(error);
  }
}

function showError(error) {
  bind([]);
  main.replaceChildren(h('div', { class: 'browse' },
    h('h1', null, 'The page could not be loaded'),
    h('p', { class: 'fault', role: 'alert' }, error.message),
    h('p', null, h('a', { href: '#/' }, 'All questions'), ' · ', h('button', { type: 'button', onclick: show }, 'Try again'))));
}

// Nothing else would tell that the action of a button or a key failed. The next one hides it.
addEventListener('unhandledrejection', (event) => {
  event.preventDefault();
  fault.textContent = event.reason?.message ?? String(event.reason);
  fault.hidden = false;
});
for (const kind of ['click', 'keydown']) addEventListener(kind, () => { fault.hidden = true; }, { capture: true });
listen(document.querySelector('#help'), document.querySelector('#help-button'));
document.querySelector('.skip').addEventListener('click', (event) => {
  event.preventDefault();
  main.focus();
});
addEventListener('hashchange', show);
show();

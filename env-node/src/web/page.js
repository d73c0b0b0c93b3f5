// The page: shows the view that the address names. `#/` questions, `#/play/ID` an episode, `#/replay` recordings.

import * as api from './api.js';
import { h } from './dom.js';
import { bind, listen } from './keys.js';
import { showPlay } from './play.js';
import { showQuestions } from './questions.js';
import { showReplay } from './replay.js';

const main = document.querySelector('#main');
let info = null;
let terms = null;
let leaving = new AbortController();

async function show() {
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  const address = location.hash;
  const isReplay = address === '#/replay';
  for (const link of document.querySelectorAll('nav a')) {
    if ((link.dataset.view === 'replay') === isReplay) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
  try {
    info ??= await api.info();
    terms ??= { reward_profile: info.default_reward_profile, step_budget: info.default_step_budget };
    const played = /^#\/play\/(.+)$/.exec(address);
    if (signal.aborted) return;
    scrollTo(0, 0);
    if (played) await showPlay(main, { info, terms, signal }, decodeURIComponent(played[1]));
    else if (isReplay) showReplay(main, { signal });
    else await showQuestions(main, { info, terms, signal });
  } catch (error) {
    if (!signal.aborted) showFault(error);
  }
}

function showFault(error) {
  bind([]);
  main.replaceChildren(h('div', { class: 'browse' },
    h('h1', null, 'That did not work'),
    h('p', { class: 'fault', role: 'alert' }, error.message),
    h('p', null, h('a', { href: '#/' }, 'All questions'), ' · ', h('button', { type: 'button', onclick: show }, 'Try again'))));
}

listen(document.querySelector('#help'), document.querySelector('#help-button'));
document.querySelector('.skip').addEventListener('click', (event) => {
  event.preventDefault();
  main.focus();
});
addEventListener('hashchange', show);
show();

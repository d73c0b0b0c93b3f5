// The list of questions, filtered by words, database, split and level, and fetched page by page.

import * as api from './api.js';
import { announce, h, select } from './dom.js';
import { bind } from './keys.js';

const PAGE_SIZE = 25;
/** The filter. It outlives the view, so that going back shows the same list. */
const filter = { text: '', database: '', split: '', level: '', offset: 0 };

/** Shows the list in `main`. `settings` are those of the next episode; they change in place. */
export function showQuestions(main, { info, settings, signal }) {
  const search = h('input', {
    type: 'search', value: filter.text, placeholder: 'Search the questions', 'aria-label': 'Search the questions',
    autocomplete: 'off', spellcheck: 'false', oninput: () => narrow({ text: search.value }),
  });
  const list = h('ol', { class: 'questions', 'aria-label': 'Questions' });
  const pager = h('div', { class: 'pager' });
  const fault = h('p', { class: 'fault', role: 'alert', hidden: true });
  let latest = new AbortController();

  function narrow(change) {
    Object.assign(filter, { offset: 0 }, change);
    load();
  }

  async function load() {
    latest.abort();
    latest = new AbortController();
    try {
      const page = await api.questions({ ...filter, limit: PAGE_SIZE }, latest.signal);
      fault.hidden = true;
      show(page);
    } catch (error) {
      if (error.name === 'AbortError') return;
      fault.textContent = error.message;
      fault.hidden = false;
    }
  }

  function show({ total, questions }) {
    const last = filter.offset + questions.length;
    const count = total === 0 ? 'No question matches' : `${filter.offset + 1}–${last} of ${total.toLocaleString('en')}`;
    const turn = (label, by, possible) => h('button', {
      type: 'button', disabled: !possible, onclick: () => narrow({ offset: filter.offset + by }),
    }, label);
    list.replaceChildren(...questions.map(row));
    pager.replaceChildren(
      turn('← Previous', -PAGE_SIZE, filter.offset > 0),
      h('span', null, count),
      turn('Next →', PAGE_SIZE, last < total));
    announce(count);
  }

  function walk(by) {
    const links = [...list.querySelectorAll('a')];
    const next = links[links.indexOf(document.activeElement) + by];
    (next ?? (by < 0 ? search : links.at(-1)))?.focus();
  }

  const all = (names, label) => [['', label], ...names.map((name) => [name, name])];
  const named = (entries, label) =>
    [['', label], ...entries.map(({ name, question_count: count }) => [name, `${name} (${count.toLocaleString('en')})`])];
  main.replaceChildren(
    h('div', { class: 'browse' },
      h('h1', null, 'Which question?'),
      h('p', { class: 'lead' }, 'Explore a database as an agent does: describe and sample its tables, and query it. Then answer.'),
      h('div', { class: 'filters' },
        search,
        select('Database', named(info.databases, 'all'), filter.database, ({ target }) => narrow({ database: target.value })),
        select('Split', named(info.splits, 'all'), filter.split, ({ target }) => narrow({ split: target.value })),
        select('Level', all(info.levels, 'all'), filter.level, ({ target }) => narrow({ level: target.value })),
        h('button', { type: 'button', onclick: () => playAnother() }, 'At random ', h('kbd', null, 'r'))),
      settingsForm(info, settings),
      fault, list, pager));
  search.addEventListener('keydown', (event) => {
    if (event.key !== 'ArrowDown') return;
    event.preventDefault();
    walk(1);
  });
  bind([
    { key: '/', label: 'search', run: () => search.focus() },
    { key: 'ArrowDown', shown: '↓', label: 'next question', run: () => walk(1) },
    { key: 'ArrowUp', shown: '↑', label: 'previous question', run: () => walk(-1) },
    { key: 'r', label: 'one of these at random', run: () => playAnother() },
    { key: null, shown: 'Enter', label: 'play the question' },
  ]);
  signal.addEventListener('abort', () => latest.abort());
  search.focus({ preventScroll: true });
  return load();
}

/** Opens a new episode on a random one of the questions that match the filter. */
export async function playAnother() {
  const { total } = await api.questions({ ...filter, offset: 0, limit: 0 });
  if (total === 0) throw new Error('No question matches the filters of the list.');
  const offset = Math.floor(Math.random() * total);
  const { questions } = await api.questions({ ...filter, offset, limit: 1 });
  if (questions.length === 0) return;
  const to = address(questions[0].question_id);
  // The browser does not report a change to the same address.
  if (location.hash === to) dispatchEvent(new Event('hashchange'));
  else location.hash = to;
}

/** Returns the address of a new episode on a question. */
export function address(questionId) {
  return `#/play/${encodeURIComponent(questionId)}`;
}

function row(question) {
  return h('li', null,
    h('a', { href: address(question.question_id) },
      h('span', { class: 'text' }, question.question_text),
      h('span', { class: 'tags' }, [question.database_name, question.split, question.difficulty].join(' · '))));
}

function settingsForm(info, settings) {
  const profiles = info.reward_profiles.map((name) => [name, name]);
  const budget = h('input', {
    type: 'number', min: 1, max: 1000, value: settings.step_budget,
    onchange: () => { if (budget.reportValidity()) settings.step_budget = budget.valueAsNumber || info.default_step_budget; },
  });
  return h('details', { class: 'settings' },
    h('summary', null, 'Episode settings'),
    select('Rewards', profiles, settings.reward_profile, ({ target }) => { settings.reward_profile = target.value; }),
    h('label', { class: 'field' }, h('span', null, 'Steps'), budget));
}

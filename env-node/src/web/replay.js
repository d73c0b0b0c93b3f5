// The view of recorded episodes, step by step: those of a run that the node lists, or those of a
// file, which is read in the browser and not sent anywhere.

import * as api from './api.js';
import { announce, fill, h, signed } from './dom.js';
import { bind, toggleText } from './keys.js';
import { goldPanel, schemaPanel, scorePanel, stepCard, strip, textSwitch } from './panels.js';
import { playFrom } from './play.js';
import { readSchema } from './texts.js';
import { episodeOf, readRecordings } from './transcripts.js';

const SHOWN = 200;
const STEP_MS = 1200;

/** The opened run or file. It outlives the view, so that going back shows the same recording. */
const opened = { run: '', name: '', recordings: [], faults: [], chosen: 0, words: '', isWrongOnly: false };

/** Shows the recordings of `run`, or those of the opened file, or what can be opened. */
export async function showReplay(main, { signal }, run) {
  const open = async (file) => {
    const text = await file.text();
    if (signal.aborted) return;
    keep('', file.name, text);
    reopen();
  };
  document.addEventListener('dragover', (event) => event.preventDefault(), { signal });
  document.addEventListener('drop', (event) => {
    event.preventDefault();
    if (event.dataTransfer.files.length > 0) open(event.dataTransfer.files[0]);
  }, { signal });
  bind([]);
  if (run !== opened.run) {
    const text = run && await api.transcripts(run);
    // The person may have opened another run meanwhile.
    if (signal.aborted) return;
    keep(run, run, text);
  }
  await (opened.recordings.length > 0 ? new Replay(main, signal).start() : showPicker(main, signal, open));
}

/** Keeps the recordings in `text`; none if it is empty and nothing was named. */
function keep(run, name, text) {
  const read = name === '' ? { recordings: [], faults: [] } : readRecordings(text);
  Object.assign(opened, { run, name, chosen: 0, words: '', isWrongOnly: false }, read);
}

/** Shows what is kept now: the file, or what can be opened. */
function reopen() {
  if (location.hash === '#/replay') dispatchEvent(new Event('hashchange'));
  else location.hash = '#/replay';
}

function close() {
  keep('', '', '');
  reopen();
}

async function showPicker(main, signal, open) {
  const { runs } = await api.runs();
  if (signal.aborted) return;
  const input = h('input', { type: 'file', accept: '.jsonl,.json,.ndjson', onchange: () => { if (input.files.length > 0) open(input.files[0]); } });
  main.replaceChildren(h('div', { class: 'browse' },
    h('h1', null, 'Replay an episode'),
    faultsOf(),
    runs.length > 0 && h('ol', { class: 'questions', 'aria-label': 'Runs' }, runs.map(runRow)),
    h('p', { class: 'lead' }, 'Open the ', h('code', null, 'transcripts.jsonl'), ' of a run, or the output of ',
      h('code', null, 'sqlenv trajectories'), '. The file stays in this browser.',
      runs.length === 0 && [' ', h('code', null, 'sqlenv env-node --runs-dir runs'), ' lists the runs of a folder here.']),
    h('label', { class: 'drop' }, input, h('span', null, 'Choose a file, or drop one here'))));
  (main.querySelector('.questions a') ?? input).focus({ preventScroll: true });
}

function runRow({ name, size_bytes: size, modified_unix_seconds: modified }) {
  const date = new Date(modified * 1000).toISOString().slice(0, 16).replace('T', ' ');
  const kilobytes = Math.ceil(size / 1000).toLocaleString('en');
  return h('li', null, h('a', { href: `#/replay/${encodeURIComponent(name)}` },
    h('span', { class: 'text' }, name), h('span', { class: 'tags' }, `${date} UTC · ${kilobytes} kB`)));
}

function faultsOf() {
  const { faults, name } = opened;
  if (faults.length === 0) return null;
  const more = faults.length > 3 ? ` and ${faults.length - 3} more` : '';
  return h('p', { class: 'fault', role: 'alert' }, `${name}: ${faults.slice(0, 3).join('; ')}${more}`);
}

class Replay {
  constructor(main, signal) {
    this.list = h('ol', { class: 'recordings', 'aria-label': 'Episodes' });
    this.stage = h('div', { class: 'middle' });
    this.side = h('aside', { class: 'side right', 'aria-label': 'Score and schema' });
    const words = h('input', {
      type: 'search', placeholder: 'Search the episodes', 'aria-label': 'Search the episodes', value: opened.words,
      oninput: () => { opened.words = words.value; this.showList(); },
    });
    const wrongOnly = h('input', { type: 'checkbox', checked: opened.isWrongOnly, onchange: () => { opened.isWrongOnly = wrongOnly.checked; this.showList(); } });
    main.replaceChildren(h('div', { class: 'episode replay' },
      h('aside', { class: 'side left', 'aria-label': 'Recording' },
        h('p', { class: 'file' }, opened.name), h('button', { type: 'button', class: 'quiet', onclick: close }, 'Other recordings'), faultsOf(),
        words, h('label', { class: 'check' }, wrongOnly, ' incorrect only'), this.list),
      this.stage, this.side));
    bind([
      { key: 'ArrowRight', shown: '→', label: 'next step', run: () => this.move(1) },
      { key: 'ArrowLeft', shown: '←', label: 'previous step', run: () => this.move(-1) },
      { key: 'Home', label: 'first step', run: () => this.move(-Infinity) },
      { key: 'End', label: 'last step', run: () => this.move(Infinity) },
      { key: ' ', shown: 'Space', label: 'play, or pause', run: () => this.toggle() },
      { key: 'j', label: 'next episode', run: () => this.turn(1) },
      { key: 'k', label: 'previous episode', run: () => this.turn(-1) },
      { key: 'p', label: 'continue from here', run: () => this.playOn() },
      { key: 't', label: 'tables or text', run: toggleText },
      { key: '/', label: 'search', run: () => words.focus() },
    ]);
    signal.addEventListener('abort', () => this.pause());
  }

  start() {
    this.showList();
    this.choose(opened.chosen);
  }

  /** Returns the indices of the recordings that match the search. */
  matching() {
    const words = opened.words.toLowerCase().split(/\s+/).filter(Boolean);
    return [...opened.recordings.keys()].filter((index) => {
      const { question, questionId, tags, correct } = opened.recordings[index];
      const text = [question, questionId, ...tags].join('\n').toLowerCase();
      return !(opened.isWrongOnly && correct) && words.every((word) => text.includes(word));
    });
  }

  showList() {
    const matching = this.matching();
    const rows = matching.slice(0, SHOWN).map((index) => {
      const { question, questionId, tags, correct, failure, reward } = opened.recordings[index];
      return h('li', null, h('button', {
        type: 'button', 'data-index': index, 'aria-current': index === opened.chosen ? 'true' : null, onclick: () => this.choose(index),
      },
        h('span', { class: correct ? 'good' : 'bad', 'aria-label': failure ? 'failed' : correct ? 'right' : 'wrong' }, correct ? '✓' : '✗'),
        h('span', { class: 'text' }, question || questionId),
        h('span', { class: 'tags' }, [...tags, signed(reward)].join(' · '))));
    });
    const more = matching.length - rows.length;
    this.list.replaceChildren(...rows, ...(more > 0 ? [h('li', { class: 'quiet' }, `${more.toLocaleString('en')} more; refine the search`)] : []));
    if (matching.length === 0) this.list.append(h('li', { class: 'quiet' }, 'No episode matches.'));
  }

  choose(index) {
    this.pause();
    opened.chosen = index;
    for (const button of this.list.querySelectorAll('button')) {
      const isChosen = Number(button.dataset.index) === index;
      if (isChosen) button.setAttribute('aria-current', 'true');
      else button.removeAttribute('aria-current');
      if (isChosen) button.scrollIntoView({ block: 'nearest' });
    }
    const recording = opened.recordings[index];
    this.episode = episodeOf(recording);
    this.tables = null;
    this.show();
    this.addHeadings(recording);
    if (!recording.question) this.lookUp(recording);
  }

  /** Fetches the names of columns, which samples do not hold. The node may not know the question. */
  async addHeadings(recording) {
    const { schema_info: schema } = await api.schema(recording.questionId).catch(() => ({ schema_info: '' }));
    if (this.episode.about !== recording || schema === '') return;
    this.tables = readSchema([schema]);
    this.show();
  }

  /** Fetches the question's text, which a trajectory does not hold. The node may not know it. */
  async lookUp(recording) {
    const { questions } = await api.questions({ text: recording.questionId, limit: 50 }).catch(() => ({ questions: [] }));
    const found = questions.find(({ question_id: id }) => id === recording.questionId);
    if (!found) return;
    recording.question = found.question_text;
    recording.tags = [found.database_name, found.difficulty, ...recording.tags];
    this.showList();
    if (this.episode.about === recording) this.show();
  }

  turn(by) {
    const matching = this.matching();
    const next = matching[matching.indexOf(opened.chosen) + by];
    if (next !== undefined) this.choose(next);
  }

  move(by) {
    this.pause();
    this.step(by);
  }

  step(by) {
    const hasMoved = this.episode.move(by);
    if (hasMoved) this.show();
    return hasMoved;
  }

  toggle() {
    if (this.timer) return this.pause();
    if (this.episode.now.chosen === null) this.step(-Infinity);
    this.timer = setInterval(() => {
      if (!this.step(1) || this.episode.now.chosen === null) this.pause();
    }, STEP_MS);
    this.show();
  }

  pause() {
    if (!this.timer) return;
    clearInterval(this.timer);
    this.timer = null;
    this.show();
  }

  playOn() {
    playFrom(this.episode.about.questionId, this.episode.past().map((index) => this.episode.moments[index].action));
  }

  show() {
    const { episode } = this;
    const { question, questionId, tags, correct, failure, gold } = episode.about;
    const past = episode.past();
    const count = episode.path().length;
    const isAtEnd = episode.now.chosen === null;
    const focused = this.stage.contains(document.activeElement) ? document.activeElement.getAttribute('aria-label') : null;
    fill(this.stage,
      h('div', { class: 'head' },
        h('p', { class: 'eyebrow' }, tags.join(' · ')),
        h('h1', null, question || questionId),
        this.controls(past.length, count)),
      h('ol', { class: 'steps', 'aria-label': 'Steps' }, past.map((index, place) =>
        stepCard(episode.moments[index], place + 1, { isNow: index === episode.at, tables: this.tables }))),
      isAtEnd && h('p', { class: `ending ${correct ? 'good' : 'bad'}` }, h('b', null, failure ? 'Failed' : correct ? 'Right' : 'Wrong'),
        ` after ${count} ${count === 1 ? 'step' : 'steps'}, ${signed(episode.about.reward)} in total. ${failure}`));
    fill(this.side,
      h('p', { class: 'left-over' }, h('b', null, `${past.length}`), ` of ${count} steps`),
      strip(episode, count),
      scorePanel(episode),
      h('div', { class: 'tools' }, textSwitch()),
      gold && goldPanel(gold),
      h('h2', null, 'Schema'), schemaPanel(episode));
    if (focused) this.stage.querySelector(`[aria-label=${CSS.escape(focused)}]`)?.focus();
    this.stage.querySelector('.now')?.scrollIntoView({ block: 'nearest' });
    announce(past.length > 0 ? episode.now.error || episode.now.result : question);
  }

  controls(at, count) {
    const button = (label, sign, run, disabled) => h('button', { type: 'button', 'aria-label': label, title: label, disabled, onclick: run }, sign);
    return h('div', { class: 'controls', role: 'toolbar', 'aria-label': 'Replay' },
      button('First', '«', () => this.move(-Infinity), at === 0),
      button('Back', '‹', () => this.move(-1), at === 0),
      button(this.timer ? 'Pause' : 'Play', this.timer ? '❚❚' : '▶', () => this.toggle(), count === 0),
      button('Forward', '›', () => this.move(1), at === count),
      button('Last', '»', () => this.move(Infinity), at === count),
      h('span', { class: 'count' }, `${at} / ${count}`),
      h('button', { type: 'button', class: 'quiet', onclick: () => this.playOn() }, 'Continue from here ', h('kbd', null, 'p')));
  }
}

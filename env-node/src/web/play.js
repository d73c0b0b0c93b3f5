// The view in which a person plays an episode. The node keeps nothing of it: each moment holds its
// token, so the episode can continue from any of them.

import * as api from './api.js';
import { Composer } from './composer.js';
import { announce, fill, h, signed } from './dom.js';
import { Episode } from './episode.js';
import { bind, toggleText } from './keys.js';
import { goldPanel, schemaPanel, scorePanel, stepCard, strip, textSwitch } from './panels.js';
import { address, playAnother } from './questions.js';
import { readSchema } from './texts.js';

/** The first actions of the next episode. */
let firstActions = [];

/** Opens a new episode on the question and runs these actions. */
export function playFrom(questionId, actions) {
  firstActions = actions;
  location.hash = address(questionId);
}

/** Starts an episode and shows it in `main`. */
export async function showPlay(main, { settings, signal }, questionId) {
  const actions = firstActions;
  firstActions = [];
  const [{ question, ...first }, { schema_info: schema }] =
    await Promise.all([api.reset(questionId, settings), api.schema(questionId)]);
  if (signal.aborted) return;
  const view = new Play(main, new Episode(question, first), readSchema([schema]), settings);
  view.show();
  for (const action of actions) {
    if (signal.aborted || view.isOver) return;
    // What follows a failed action would be another episode.
    if (!await view.run(action)) return;
  }
}

class Play {
  constructor(main, episode, tables, settings) {
    this.episode = episode;
    this.tables = tables;
    this.settings = settings;
    this.composer = new Composer((action) => this.run(action));
    this.heading = h('div');
    this.steps = h('ol', { class: 'steps', 'aria-label': 'Steps' });
    this.verdict = h('section', { class: 'verdict', 'aria-label': 'The end', hidden: true });
    this.schema = h('div');
    this.score = h('div');
    this.undo = h('button', { type: 'button', class: 'quiet', onclick: () => this.move(-1) }, 'Undo ', h('kbd', null, 'u'));
    this.redo = h('button', { type: 'button', class: 'quiet', onclick: () => this.move(1) }, 'Redo ', h('kbd', null, 'y'));
    const { question_text: text, database_name: database, split, difficulty } = episode.about;
    const isWide = matchMedia('(min-width: 900px)').matches;
    main.replaceChildren(h('div', { class: 'episode' },
      h('aside', { class: 'side left', 'aria-label': 'Known schema' },
        h('details', { open: isWide }, h('summary', null, h('h2', null, 'Schema')), this.schema)),
      h('aside', { class: 'side right', 'aria-label': 'Score' }, this.heading, this.score,
        h('div', { class: 'tools' }, this.undo, this.redo, textSwitch())),
      h('div', { class: 'middle' },
        h('div', { class: 'head' },
          h('p', { class: 'eyebrow' }, [database, split, difficulty].join(' · ')),
          h('h1', null, text)),
        h('div', { class: 'empty quiet' }, 'Describe or sample a table of the schema, or write a query.'),
        this.steps, this.verdict, this.composer.element)));
    bind([
      ...this.composer.bindings(),
      { key: 'u', label: 'undo: back one step', run: () => this.move(-1) },
      { key: 'y', label: 'redo: forward one step', run: () => this.move(1) },
      { key: 't', label: 'tables or text', run: toggleText },
      { key: 'n', label: 'another question', run: () => playAnother() },
      { key: 'l', label: 'list of questions', run: () => { location.hash = '#/'; } },
    ]);
  }

  get isOver() {
    return this.episode.now.observation.done;
  }

  /** Applies an action at the current moment. Returns whether it was applied. */
  async run(action) {
    if (this.isBusy || this.isOver) return false;
    this.isBusy = true;
    this.composer.setBusy(true);
    const from = this.episode.at;
    let isApplied = false;
    try {
      const { observation, token, correct, gold, reward_components: components } = await api.step(this.episode.now.token, action);
      this.episode.goTo(from);
      const { result, error, reward } = observation;
      this.episode.add({ action, observation, result, error, reward, components, correct, gold, token });
      isApplied = true;
      this.composer.showError(null);
      announce(this.isOver ? this.ending() : error || result);
    } catch (error) {
      this.composer.showError(error.message);
    }
    this.isBusy = false;
    this.composer.setBusy(false);
    this.show();
    return isApplied;
  }

  move(by) {
    if (!this.isBusy && this.episode.move(by)) this.show();
  }

  goTo(index) {
    if (this.isBusy) return;
    this.episode.goTo(index);
    this.show();
  }

  show() {
    const { episode } = this;
    const { observation } = episode.now;
    const past = new Set(episode.past());
    this.steps.replaceChildren(...episode.path().map((index, place) => stepCard(episode.moments[index], place + 1, {
      isNow: index === episode.at,
      isAhead: !past.has(index),
      tables: this.tables,
      go: () => this.goTo(index),
      branches: this.branches(index),
    })));
    this.steps.previousElementSibling.hidden = episode.moments.length > 1;
    const left = observation.budget_remaining;
    this.heading.replaceChildren(
      h('p', { class: 'left-over' }, h('b', null, `${left}`), ` of ${left + observation.step_count} steps left`),
      strip(episode, left + observation.step_count));
    this.score.replaceChildren(scorePanel(episode, this.settings.reward_profile));
    this.schema.replaceChildren(schemaPanel(episode, this.isOver ? null : (action) => this.run(action)));
    this.composer.suggest([...readSchema([observation.schema_info]).keys()]);
    this.undo.disabled = episode.at === 0;
    this.redo.disabled = episode.now.chosen === null;
    this.composer.element.hidden = this.isOver;
    this.verdict.hidden = !this.isOver;
    if (this.isOver) this.showVerdict();
    else this.composer.focus();
    const shown = this.isOver ? this.verdict : this.steps.querySelector('.now');
    shown?.scrollIntoView({ block: 'nearest' });
  }

  /** Creates buttons to the other actions that were tried at the same moment. */
  branches(index) {
    const { children } = this.episode.moments[this.episode.moments[index].parent];
    if (children.length < 2) return null;
    const place = children.indexOf(index);
    const turn = (label, to, sign) => h('button', {
      type: 'button', class: 'quiet', 'aria-label': label, onclick: () => this.goTo(children[(to + children.length) % children.length]),
    }, sign);
    return h('span', { class: 'branches' },
      turn('Previous branch', place - 1, '‹'), `branch ${place + 1} of ${children.length}`, turn('Next branch', place + 1, '›'));
  }

  ending() {
    const { action, correct } = this.episode.now;
    return correct ? 'Right' : action.action_type === 'ANSWER' ? 'Wrong' : 'Out of steps';
  }

  showVerdict() {
    const { total } = this.episode.sums();
    const count = this.episode.now.observation.step_count;
    const next = h('button', { type: 'button', class: 'main', onclick: () => playAnother() }, 'Another question ', h('kbd', null, 'n'));
    this.verdict.className = `verdict ${this.episode.now.correct ? 'right' : 'wrong'}`;
    fill(this.verdict,
      h('p', { class: 'ending' }, h('b', null, this.ending()), ` after ${count} ${count === 1 ? 'step' : 'steps'}, ${signed(total)} in total.`),
      this.episode.now.gold && goldPanel(this.episode.now.gold, true),
      h('div', { class: 'next' },
        next,
        h('button', { type: 'button', onclick: () => this.goTo(this.episode.now.parent) }, 'Undo ', h('kbd', null, 'u')),
        h('a', { href: '#/' }, 'All questions')));
    next.focus({ preventScroll: true });
  }
}

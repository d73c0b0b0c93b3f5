// The parts that playing and replaying share: steps, the known schema, the score.

import { h, signed, tone } from './dom.js';
import { COMPONENTS } from './episode.js';
import { toggleText } from './keys.js';
import { readRows, readSchema } from './texts.js';

/**
 * Renders one step. `tables` are those of `readSchema`, for the headings of samples. `go` goes to
 * the step's moment. `branches` holds the buttons to the other actions at the same moment. All may
 * be absent.
 */
export function stepCard(moment, number, { isNow = false, isAhead = false, tables = null, go = null, branches = null } = {}) {
  const { action, reward, error, malformed, completion } = moment;
  const isShort = action.argument.length <= 60 && !action.argument.includes('\n');
  const classes = ['step', isNow && 'now', isAhead && 'ahead'].filter(Boolean).join(' ');
  return h('li', { class: classes, 'aria-current': isNow ? 'step' : null },
    h('div', { class: 'action' },
      h('span', { class: 'number' }, `${number}`),
      h('span', { class: 'kind' }, action.action_type),
      isShort && h('code', null, action.argument),
      malformed && h('span', { class: 'mark' }, 'malformed call'),
      h('span', { class: `reward ${tone(reward)}`, title: 'reward of this step' }, signed(reward))),
    !isShort && h('pre', { class: 'argument' }, action.argument),
    completion && h('details', { class: 'completion' }, h('summary', null, 'What the model wrote'), h('pre', null, completion)),
    error ? h('p', { class: 'error' }, error) : result(moment.result, headings(action, tables)),
    foot(
      parts(moment.components),
      branches,
      go && !isNow && h('button', { type: 'button', class: 'quiet back', onclick: go }, isAhead ? 'Forward to here' : 'Back to here')));
}

function foot(...contents) {
  return contents.some(Boolean) && h('div', { class: 'foot' }, contents);
}

function parts(components) {
  const won = COMPONENTS.filter((name) => components && tone(components[name]) !== 'even');
  return won.length > 0 && h('span', { class: 'parts' }, won.map((name) => `${name} ${signed(components[name])}`).join(' · '));
}

/** Returns the column names of a sampled table, or `null` for other actions and tables. */
function headings({ action_type: type, argument }, tables) {
  if (type.trim().toUpperCase() !== 'SAMPLE' || !tables) return null;
  const name = argument.trim();
  const same = [...tables.keys()].find((table) => table.toLowerCase() === name.toLowerCase());
  const table = tables.get(name) ?? tables.get(same);
  return table?.columns?.map(([column]) => column) ?? null;
}

function result(text, names) {
  if (!text) return null;
  const described = /^Table '/.test(text) && [...readSchema([text]).values()][0];
  const table = described?.columns ? describedTable(described) : rowTable(readRows(text), names);
  if (!table) return h('pre', { class: 'result' }, text);
  return h('div', { class: 'result' },
    h('div', { class: 'scroll', tabindex: 0, role: 'group', 'aria-label': 'Result' }, table),
    h('pre', { class: 'raw' }, text));
}

function describedTable({ columns, rowCount }) {
  const head = h('tr', null, h('th', { scope: 'col' }, 'Column'), h('th', { scope: 'col' }, 'Type'));
  const rows = columns.map(([name, type]) => h('tr', null, h('td', null, name), h('td', { class: 'type' }, type)));
  const count = rowCount === null ? null : h('caption', null, `${rowCount.toLocaleString('en')} rows`);
  return h('table', { class: 'columns' }, count, h('thead', null, head), h('tbody', null, rows));
}

function rowTable(read, names) {
  if (!read) return null;
  const cell = (text) => h('td', { class: /^-?\d+(\.\d+)?$/.test(text) ? 'figure' : text === 'NULL' ? 'null' : null }, text);
  const rows = read.rows.map((row, index) => h('tr', null, h('th', { scope: 'row' }, `${index + 1}`), row.map(cell)));
  const note = read.note && h('caption', null, read.note.replace(/^\.\.\. \((.*)\)$/, '$1'));
  const isNamed = names?.length === read.rows[0].length;
  const heads = isNamed && h('thead', null, h('tr', null, h('td'), names.map((name) => h('th', { scope: 'col' }, name))));
  return h('table', { class: 'rows' }, note, heads, h('tbody', null, rows));
}

/**
 * Renders the tables known at the current moment. `act` describes or samples one, if the episode
 * goes on.
 */
export function schemaPanel(episode, act = null) {
  const texts = episode.past().map((index) => episode.moments[index].result ?? '').filter((text) => text.startsWith("Table '"));
  const tables = readSchema([episode.now.observation?.schema_info ?? '', ...texts]);
  if (tables.size === 0) return h('p', { class: 'quiet' }, 'No table was described yet.');
  const button = (kind, name) => h('button', {
    type: 'button', class: 'quiet', 'aria-label': `${kind} ${name}`, onclick: () => act({ action_type: kind.toUpperCase(), argument: name }),
  }, kind);
  return h('ul', { class: 'schema' }, [...tables].map(([name, { columns, rowCount }]) => h('li', { class: columns ? 'known' : null },
    h('div', { class: 'table' },
      h('span', { class: 'table-name' }, name),
      rowCount !== null && h('small', null, `${rowCount.toLocaleString('en')} rows`)),
    columns && h('ul', { class: 'columns' }, columns.map(([column, type]) => h('li', null, h('span', null, column), h('small', null, type)))),
    act && h('div', { class: 'acts' }, button('Describe', name), button('Sample', name)))));
}

/**
 * Renders the rewards of the current step and their sums, by component. `profile` names the reward
 * profile.
 */
export function scorePanel(episode, profile = null) {
  const sums = episode.sums();
  const { reward, components } = episode.now;
  const figure = (value) => h('td', { class: value === undefined ? 'even' : tone(value) }, value === undefined ? '·' : signed(value));
  const hasParts = episode.past().every((index) => episode.moments[index].components);
  const line = (name, value, sum) => h('tr', null, h('th', { scope: 'row' }, name), figure(value), figure(sum));
  return h('table', { class: 'score' },
    profile && h('caption', null, `Reward profile: ${profile}`),
    h('thead', null, h('tr', null, h('th', { scope: 'col' }, 'Reward'), h('th', { scope: 'col' }, 'step'), h('th', { scope: 'col' }, 'sum'))),
    hasParts && h('tbody', null, COMPONENTS.map((name) => line(name, components?.[name], sums[name]))),
    h('tfoot', null, line('total', reward, sums.total)));
}

/** Renders the gold answer of an ended episode. */
export function goldPanel({ answer, sql }, isOpen = false) {
  return h('details', { class: 'gold', open: isOpen }, h('summary', null, 'Gold answer'), h('p', null, answer), h('pre', null, sql));
}

/** Creates the button that switches between tables and text. */
export function textSwitch() {
  return h('button', { type: 'button', class: 'quiet', onclick: toggleText }, 'Tables or text ', h('kbd', null, 't'));
}

/** Renders a mark for each step of the budget, colored by its reward if the step was made. */
export function strip(episode, budget) {
  const past = episode.past();
  const mark = (_, place) => h('i', { class: place < past.length ? tone(episode.moments[past[place]].reward) : null });
  return h('div', { class: 'strip', 'aria-hidden': 'true' }, Array.from({ length: Math.min(budget, 100) }, mark));
}

// The form for the next action. Each of the four action types has a field of its own, which keeps
// its text.

import { h } from './dom.js';

const KINDS = [
  { type: 'QUERY', key: 'q', label: 'Query', hint: 'Ctrl Enter', place: 'SELECT …', rows: 3 },
  { type: 'DESCRIBE', key: 'd', label: 'Describe', hint: 'Enter', place: 'a table' },
  { type: 'SAMPLE', key: 's', label: 'Sample', hint: 'Enter', place: 'a table' },
  { type: 'ANSWER', key: 'a', label: 'Answer', hint: 'Enter', place: '42, or a list: a, b, c, or rows: a | b', rows: 1 },
];

export class Composer {
  /** Calls `run` with each submitted action. */
  constructor(run) {
    this.tables = h('datalist', { id: 'tables' });
    this.fields = new Map(KINDS.map((kind) => [kind.type, this.field(kind)]));
    this.button = h('button', { type: 'submit', class: 'main' });
    this.fault = h('p', { class: 'fault', role: 'alert', hidden: true });
    this.radios = KINDS.map(({ type }) => h('input', {
      type: 'radio', name: 'kind', value: type, onchange: () => this.choose(type, false),
    }));
    const tab = ({ label, key }, index) => h('label', { class: 'kind' }, this.radios[index], h('span', null, label, ' ', h('kbd', null, key)));
    this.element = h('form', { class: 'composer', 'aria-label': 'Next action', onsubmit: (event) => {
      event.preventDefault();
      if (!this.button.disabled) run({ action_type: this.type, argument: this.fields.get(this.type).value });
    } },
      this.fault,
      h('div', { class: 'kinds', role: 'radiogroup', 'aria-label': 'Kind of action' }, KINDS.map(tab)),
      h('div', { class: 'write' }, [...this.fields.values()], this.button),
      this.tables);
    this.choose('QUERY', false);
  }

  field({ type, label, place, rows }) {
    const common = { placeholder: place, 'aria-label': label, autocomplete: 'off', autocapitalize: 'off', spellcheck: 'false' };
    if (!rows) return h('input', { ...common, list: 'tables' });
    return h('textarea', { ...common, rows, onkeydown: (event) => {
      const isEnter = event.key === 'Enter' && !event.isComposing && !event.shiftKey;
      if (!isEnter || (type === 'QUERY' && !event.ctrlKey && !event.metaKey)) return;
      event.preventDefault();
      this.element.requestSubmit();
    } });
  }

  /** Selects an action type, and focuses its field if `isFocused`. */
  choose(type, isFocused = true) {
    this.type = type;
    KINDS.forEach((kind, index) => {
      this.radios[index].checked = kind.type === type;
      this.fields.get(kind.type).hidden = kind.type !== type;
      if (kind.type === type) this.button.replaceChildren(kind.label, ' ', h('kbd', null, kind.hint));
    });
    if (isFocused) this.focus();
  }

  focus() {
    const field = this.fields.get(this.type);
    field.focus({ preventScroll: true });
    // People edit the last query more often than they write a new one.
    if (this.type !== 'QUERY') field.select();
  }

  /** Suggests these names in the fields for a table. */
  suggest(names) {
    this.tables.replaceChildren(...names.map((value) => h('option', { value })));
  }

  setBusy(isBusy) {
    this.button.disabled = isBusy;
    this.element.setAttribute('aria-busy', isBusy);
  }

  /** Shows why an action failed, or hides the message if there is no reason. */
  showError(reason) {
    this.fault.textContent = reason ?? '';
    this.fault.hidden = !reason;
  }

  /** Returns a shortcut for each action type. */
  bindings() {
    const kinds = KINDS.map(({ key, label, type }) => ({ key, label: label.toLowerCase(), run: () => this.choose(type) }));
    return [...kinds, { key: null, shown: 'Ctrl Enter', label: 'run the action' }];
  }
}

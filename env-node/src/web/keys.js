// Single-key shortcuts of the current view. They are off while a text field has the focus. A dialog
// lists them.

import { h } from './dom.js';

let bindings = [];

/**
 * Replaces the shortcuts: `{key, shown?, label, run}`. A `null` key is listed only; an element
 * handles it.
 */
export function bind(list) {
  bindings = list;
}

/** Switches all results between tables and the text that an agent reads. */
export function toggleText() {
  document.documentElement.classList.toggle('as-text');
}

/** Handles key presses, and shows the list of shortcuts in `dialog`. */
export function listen(dialog, button) {
  const showHelp = () => {
    dialog.replaceChildren(help(dialog));
    dialog.showModal();
  };
  button.addEventListener('click', showHelp);
  document.addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || dialog.open) return;
    if (isTyping(event.target)) {
      if (event.key === 'Escape') event.target.blur();
      return;
    }
    if (event.key === ' ' && event.target.closest('button, a, summary, input')) return;
    const binding = event.key === '?' ? { run: showHelp } : bindings.find(({ key }) => key === event.key);
    if (!binding) return;
    event.preventDefault();
    binding.run();
  });
}

function isTyping(element) {
  return element.matches('textarea, select, input:not([type=radio], [type=checkbox], [type=file])');
}

function help(dialog) {
  const row = ([shown, label]) => h('div', null, h('dt', null, h('kbd', null, shown)), h('dd', null, label));
  const rows = [
    ...bindings.map(({ key, shown, label }) => [shown ?? key, label]),
    ['Esc', 'leave a text field'],
    ['?', 'this list'],
  ];
  return h('div', null,
    h('h2', { id: 'help-title' }, 'Keys'),
    h('dl', { class: 'keys' }, rows.map(row)),
    h('button', { type: 'button', onclick: () => dialog.close() }, 'Close'));
}

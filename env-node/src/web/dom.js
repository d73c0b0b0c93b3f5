// Elements made from data. Text becomes text nodes only, so it can never become markup.

/**
 * Creates an element. Attributes whose names begin with `on` are listeners. `null` and `false`
 * leave an attribute or a child out.
 */
export function h(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? '' : value);
  }
  fill(element, ...children);
  return element;
}

/** Replaces the children of an element. */
export function fill(element, ...children) {
  element.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
}

/** Creates a drop-down list of `[value, label]` pairs. */
export function select(label, pairs, chosen, onchange) {
  const options = pairs.map(([value, text]) => h('option', { value, selected: value === chosen }, text));
  return h('label', { class: 'field' }, h('span', null, label), h('select', { onchange }, options));
}

/** Announces a text to screen readers. */
export function announce(text) {
  document.querySelector('#status').textContent = text;
}

/** Formats a reward with its sign and at most four decimals. */
export function signed(number) {
  const rounded = Math.round(number * 1e4) / 1e4;
  if (rounded === 0) return '0';
  const text = Math.abs(rounded).toLocaleString('en', { minimumFractionDigits: 2, maximumFractionDigits: 4 });
  return rounded < 0 ? `−${text}` : `+${text}`;
}

/** Returns the CSS class of a reward: `good`, `bad` or `even`. */
export function tone(number) {
  return Math.abs(number) < 5e-5 ? 'even' : number > 0 ? 'good' : 'bad';
}

// The page `/docs`: every route of openapi.json with its schemas, and a form that sends a request
// to this server. dom.js precedes this text in the page.

const TEXT_LIMIT = 200_000;
const { info, paths, components } = await (await fetch('openapi.json')).json();
/** The text areas with JSON, which get the tokens of replies. */
const bodies = [];

function resolve(value) {
  if (!value?.$ref) return value ?? {};
  return value.$ref.slice(2).split('/').reduce((part, name) => part[name], { info, paths, components });
}

/** Returns a type in words, with a link if it has a name. */
function typeOf(schema = {}) {
  if (schema.$ref) {
    const name = schema.$ref.split('/').at(-1);
    return [h('a', { href: `#${name}` }, name)];
  }
  const options = schema.anyOf ?? schema.oneOf ?? schema.allOf;
  if (options) return options.flatMap((option, place) => (place > 0 ? [' or ', ...typeOf(option)] : typeOf(option)));
  if (schema.type === 'array') return ['array of ', ...typeOf(schema.items)];
  return [[schema.type ?? 'any'].flat().join(' or ')];
}

function row(name, isRequired, schema, description) {
  const fallback = schema.default === undefined || schema.default === null ? '' : `default ${JSON.stringify(schema.default)}`;
  return h('tr', null,
    h('th', { scope: 'row' }, h('code', null, name), isRequired && h('small', null, ' required')),
    h('td', null, typeOf(schema)), h('td', null, [description ?? schema.description, fallback].filter(Boolean).join('; ')));
}

function table(rows) {
  return rows.length > 0 && h('div', { class: 'scroll', tabindex: 0, role: 'group', 'aria-label': 'Fields' }, h('table', null, h('tbody', null, rows)));
}

/** Renders the fields of an object; nothing for other types. */
function fields(schema) {
  const { properties = {}, required = [] } = resolve(schema);
  return table(Object.entries(properties).map(([name, field]) => row(name, required.includes(name), field)));
}

/** Renders the type and the fields of a request's or a response's content. */
function content(heading, message, isOpen) {
  const { description = '', content: types = {} } = resolve(message);
  const [[type, { schema }] = ['', {}]] = Object.entries(types);
  const inside = schema && fields(schema);
  const title = [h('b', null, heading), ' ', description, schema && h('small', null, ' ', typeOf(schema), type && ` (${type})`)];
  return inside ? h('details', { class: 'content', open: isOpen }, h('summary', null, title), inside) : h('p', { class: 'content' }, title);
}

function operation(path, method, { summary, description, parameters = [], requestBody, responses }) {
  const id = `${method}${path}`;
  return h('details', { class: 'operation', id },
    h('summary', null, h('b', { class: method }, method.toUpperCase()), ' ', h('code', null, path), ' ', h('span', null, summary)),
    description && h('p', null, description),
    table(parameters.map((parameter) => row(parameter.name, parameter.required, parameter.schema, parameter.description))),
    requestBody && content('Request', requestBody, true),
    Object.entries(responses).map(([status, response]) => content(status, response, false)),
    form(path, method, parameters, requestBody));
}

/** Renders the form that sends a request. */
function form(path, method, parameters, requestBody) {
  const inputs = new Map(parameters.map(({ name, required, example = '' }) => [name, h('input', { name, required, value: example, autocomplete: 'off', spellcheck: 'false' })]));
  const body = requestBody && h('textarea', { 'aria-label': 'Body', spellcheck: 'false' });
  if (body) {
    setJson(body, resolve(requestBody).content['application/json'].example ?? {});
    bodies.push(body);
  }
  const reply = h('div', { class: 'reply', role: 'status' });
  const submit = async (event) => {
    event.preventDefault();
    const given = (place) => parameters.filter((parameter) => parameter.in === place).map(({ name }) => [name, inputs.get(name).value]);
    const filled = given('path').reduce((text, [name, value]) => text.replace(`{${name}}`, encodeURIComponent(value)), path);
    const query = new URLSearchParams(given('query').filter(([, value]) => value !== ''));
    await send(filled.slice(1) + (query.size > 0 ? `?${query}` : ''), method, body?.value, reply);
  };
  return h('form', { onsubmit: submit },
    [...inputs].map(([name, input]) => h('label', null, h('code', null, name), input)),
    body, h('button', null, 'Try it'), reply);
}

function setJson(area, value) {
  area.value = JSON.stringify(value, null, 2);
  area.rows = area.value.split('\n').length;
}

async function send(address, method, body, reply) {
  const headers = body === undefined ? {} : { 'content-type': 'application/json' };
  const began = performance.now();
  fill(reply, h('p', null, 'Waiting for the server …'));
  try {
    const response = await fetch(address, { method: method.toUpperCase(), headers, body });
    const text = await response.text();
    const milliseconds = Math.round(performance.now() - began);
    fill(reply, h('p', { class: response.ok ? 'good' : 'bad' }, h('b', null, `${response.status} ${response.statusText}`), ` in ${milliseconds} ms`), h('pre', null, pretty(text)));
    if (response.ok) passOn(text);
  } catch (error) {
    fill(reply, h('p', { class: 'bad' }, `The server cannot be reached: ${error.message}`));
  }
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

function pretty(text) {
  const value = parsed(text);
  const shown = value === null ? text : JSON.stringify(value, null, 2);
  return shown.length > TEXT_LIMIT ? `${shown.slice(0, TEXT_LIMIT)}\n… ${shown.length - TEXT_LIMIT} more characters` : shown;
}

/** Puts the token of a reply into the requests that take one. */
function passOn(text) {
  const reply = parsed(text);
  const tokens = { episode_token: reply?.metadata?.episode_token, token: reply?.token };
  for (const area of bodies) {
    const body = parsed(area.value);
    for (const [name, token] of Object.entries(tokens)) {
      if (typeof token === 'string' && typeof body?.[name] === 'string') setJson(area, { ...body, [name]: token });
    }
  }
}

function openTarget() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target instanceof HTMLDetailsElement) target.open = true;
  target?.scrollIntoView();
}

const operations = Object.entries(paths).flatMap(([path, methods]) => Object.entries(methods).map(([method, details]) => ({ path, method, details })));
const groups = Map.groupBy(operations, ({ details }) => details.tags[0]);
fill(document.querySelector('main'),
  h('h1', null, info.title), h('p', null, info.description), h('p', null, h('a', { href: 'openapi.json' }, 'openapi.json')),
  [...groups].flatMap(([tag, group]) => [h('h2', null, tag), ...group.map(({ path, method, details }) => operation(path, method, details))]),
  h('h2', null, 'Schemas'),
  Object.entries(components.schemas).map(([name, schema]) => h('details', { class: 'operation', id: name },
    h('summary', null, h('code', null, name), ' ', h('span', null, schema.description ?? '')), fields(schema))));
addEventListener('hashchange', openTarget);
openTarget();

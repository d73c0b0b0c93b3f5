// Requests to the node. A step is a pure function of its token, so repeating one after a failure of
// the machine is safe.

const PAUSES_MS = [300, 1000, 3000];

async function request(path, options, read = (response) => response.json()) {
  for (const pause of [...PAUSES_MS, null]) {
    const response = await fetch(`api/${path}`, options).catch((error) => {
      if (error.name === 'AbortError') throw error;
      return null;
    });
    if (response?.ok) return read(response);
    const isTransient = !response || response.status === 503;
    if (!isTransient || pause === null) throw new Error(await reason(response));
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
}

async function reason(response) {
  if (!response) return 'The node cannot be reached. Is it running?';
  const body = await response.json().catch(() => ({}));
  return typeof body.detail === 'string' ? body.detail : `The node answered with status ${response.status}.`;
}

function post(path, body) {
  return request(path, { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) });
}

/** Fetches databases, splits, levels and the default settings of an episode. */
export const info = () => request('info');

/** Fetches a page of questions: `{total, questions}`. */
export const questions = (filter, signal) =>
  request(`questions?${new URLSearchParams(filter)}`, { signal });

/** Fetches the columns of all tables of a question's database, as DESCRIBE lists them. */
export const schema = (questionId) => request(`schema?${new URLSearchParams({ question_id: questionId })}`);

/** Fetches the runs whose episodes can be replayed, newest first: `{runs}`. */
export const runs = () => request('runs');

/** Fetches the text of a run's transcripts. */
export const transcripts = (name) =>
  request(`runs/${encodeURIComponent(name)}`, undefined, (response) => response.text());

/** Starts an episode: `{token, question, observation}`. */
export const reset = (questionId, settings) =>
  post('reset', { question_id: questionId, ...settings });

/** Applies one action to the episode in `token`. The last reply of an episode has `gold`. */
export const step = (token, action) => post('step', { token, ...action });

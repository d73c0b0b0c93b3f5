// What the page asks the node for. Step is a pure function of its token, so what the machine does wrong is asked again.

const PAUSES_MS = [300, 1000, 3000];

async function ask(path, options) {
  for (const pause of [...PAUSES_MS, null]) {
    const reply = await fetch(`api/${path}`, options).catch((error) => {
      if (error.name === 'AbortError') throw error;
      return null;
    });
    if (reply?.ok) return reply.json();
    const isBusy = !reply || reply.status === 429 || reply.status === 503;
    if (!isBusy || pause === null) throw new Error(await reason(reply));
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
}

async function reason(reply) {
  if (!reply) return 'The node cannot be reached. Is it running?';
  const body = await reply.json().catch(() => ({}));
  return typeof body.detail === 'string' ? body.detail : `The node answered ${reply.status}.`;
}

function post(path, body) {
  return ask(path, { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) });
}

/** Databases, splits, levels and the default terms. */
export const info = () => ask('info');

/** A page of questions: `{total, questions}`. */
export const questions = (wanted, signal) => ask(`questions?${new URLSearchParams(wanted)}`, { signal });

/** A new episode: `{token, question, observation}`. */
export const reset = (questionId, terms) => post('reset', { question_id: questionId, ...terms });

/** The episode in `token` after one action. */
export const step = (token, action) => post('step', { token, ...action });

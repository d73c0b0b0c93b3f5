// Reads recorded episodes from a file: the transcripts.jsonl of a run, the output of `sqlenv
// trajectories`, or either as one JSON array.

import { COMPONENTS, Episode } from './episode.js';

/** Parses a file into `{recordings, faults}`. A fault names its line. */
export function readRecordings(text) {
  const recordings = [];
  const faults = [];
  for (const [line, value] of values(text, faults)) {
    const recording = fromTranscript(value) ?? fromTrajectory(value);
    if (recording) recordings.push(recording);
    else faults.push(`${line}: neither a transcript nor a trajectory`);
  }
  if (recordings.length === 0 && faults.length === 0) faults.push('The file holds no episode');
  return { recordings, faults };
}

function* values(text, faults) {
  if (text.trimStart().startsWith('[')) {
    try {
      yield* JSON.parse(text).map((value, index) => [`Element ${index + 1}`, value]);
    } catch (error) {
      faults.push(`The file is not JSON: ${error.message}`);
    }
    return;
  }
  for (const [index, line] of text.split('\n').entries()) {
    if (line.trim() === '') continue;
    let value;
    try {
      value = JSON.parse(line);
    } catch (error) {
      faults.push(`Line ${index + 1}: ${error.message}`);
      continue;
    }
    yield [`Line ${index + 1}`, value];
  }
}

function fromTranscript(record) {
  if (!Array.isArray(record?.steps)) return null;
  return {
    questionId: string(record.question_id),
    question: string(record.question),
    tags: [record.policy, record.database, record.difficulty].filter((tag) => typeof tag === 'string'),
    // A learner process does not know the gold answers, and writes empty texts.
    gold: record.gold_sql ? { sql: string(record.gold_sql), answer: string(record.gold_answer) } : null,
    correct: record.correct === true,
    failure: string(record.failure),
    reward: number(record.reward),
    steps: record.steps.map((step) => ({
      action: { action_type: string(step?.action_type), argument: string(step?.argument) },
      result: string(step?.result),
      error: string(step?.error),
      reward: number(step?.reward),
      components: components(step?.components),
      completion: typeof step?.completion === 'string' ? step.completion : null,
      malformed: step?.malformed === true,
    })),
  };
}

const TOOLS = new Map([['describe', 'DESCRIBE'], ['sample', 'SAMPLE'], ['query', 'QUERY'], ['answer', 'ANSWER']]);

function fromTrajectory(record) {
  if (!Array.isArray(record?.messages)) return null;
  const steps = [];
  let action = null;
  let written = '';
  for (const message of record.messages) {
    if (message?.role === 'assistant') written = string(message.content);
    const call = message?.tool_calls?.[0];
    // The examples before the question are no steps of the episode.
    if (call?.function && !string(call.id).startsWith('example_')) action = actionOf(call.function);
    // A malformed turn has no call, so its result is one of the user. The environment got its text
    // as a query.
    if (message?.role === 'user' && message.malformed_call === true) action = { action_type: 'QUERY', argument: written };
    else if (message?.role !== 'tool' || !action) continue;
    const text = string(message.content);
    steps.push({
      action,
      result: message.is_error ? '' : text,
      error: message.is_error ? text : '',
      reward: number(message.reward),
      components: null,
      completion: null,
      malformed: message.malformed_call === true,
    });
    action = null;
  }
  const member = Number.isInteger(record.member) ? `group ${record.group_index}, member ${record.member + 1}` : null;
  return {
    questionId: string(record.question_id),
    question: '',
    tags: [member].filter(Boolean),
    gold: null,
    correct: record.correct === true,
    failure: string(record.failure),
    reward: number(record.return),
    steps,
  };
}

function actionOf({ name, arguments: text }) {
  let argument = string(text);
  try {
    argument = Object.values(JSON.parse(text)).map(String).join(', ');
  } catch {
    // The arguments of a malformed call cannot be parsed. Their text is shown as it is.
  }
  return { action_type: TOOLS.get(name) ?? string(name), argument };
}

/** Makes an episode of a recording, at its first moment. */
export function episodeOf(recording) {
  const episode = new Episode(recording, {});
  for (const step of recording.steps) episode.add(step);
  episode.goTo(0);
  return episode;
}

function components(value) {
  return value ? Object.fromEntries(COMPONENTS.map((name) => [name, number(value[name])])) : null;
}

function string(value) {
  return typeof value === 'string' ? value : value === undefined || value === null ? '' : JSON.stringify(value);
}

function number(value) {
  return typeof value === 'number' && Number.isFinite(value) ? value : 0;
}

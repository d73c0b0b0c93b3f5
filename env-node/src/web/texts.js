// Parsers for the texts of observations: the schema, and the rows of a result. A text that can be
// read in two ways (a cell holds a line end or ` | `) is shown as text.

/**
 * Parses `schema_info` and the results of DESCRIBE into tables by name:
 * `{columns: [[name, type]] or null, rowCount or null}`.
 */
export function readSchema(texts) {
  const tables = new Map();
  const table = (name) => {
    if (!tables.has(name)) tables.set(name, { columns: null, rowCount: null });
    return tables.get(name);
  };
  for (const text of texts) {
    let described = null;
    for (const line of text.split('\n')) {
      const heading = /^Table '(.*)' columns:$/.exec(line);
      const entry = /^- (.*)$/.exec(line);
      const count = /^Row count: (\d+)$/.exec(line);
      if (heading) {
        described = table(heading[1]);
        described.columns = [];
      } else if (entry && described) described.columns.push(column(entry[1]));
      else if (entry) table(entry[1]);
      else if (count && described) described.rowCount = Number(count[1]);
    }
  }
  return tables;
}

function column(text) {
  const colon = text.lastIndexOf(': ');
  return colon < 0 ? [text, ''] : [text.slice(0, colon), text.slice(colon + 2)];
}

/** Parses a result in numbered lines into `{rows, note}`. Returns `null` for any other text. */
export function readRows(text) {
  const lines = text.split('\n');
  const note = lines.at(-1).startsWith('... (first ') ? lines.pop() : null;
  const rows = [];
  for (const line of lines) {
    const start = `${rows.length + 1}. `;
    if (!line.startsWith(start)) return null;
    rows.push(line.slice(start.length).split(' | '));
  }
  const isEven = rows.every((row) => row.length === rows[0].length);
  return rows.length > 0 && isEven ? { rows, note } : null;
}

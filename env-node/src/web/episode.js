// An episode as a tree of moments. A moment is the state after an action and holds the episode's
// token at that point, so an episode can continue from any moment. Going back costs nothing, and
// another action there begins a branch beside the old one.

export const COMPONENTS = ['operational', 'progress', 'terminal', 'clip'];

export class Episode {
  /**
   * `about` describes the question. `first` is the moment before any action: `{token?,
   * observation?}`.
   */
  constructor(about, first) {
    this.about = about;
    this.moments = [{ ...first, parent: null, children: [], chosen: null }];
    this.at = 0;
  }

  /** The current moment. */
  get now() {
    return this.moments[this.at];
  }

  /**
   * Adds a moment (action, result or error, reward, components, …) after the current one and goes
   * there.
   */
  add(moment) {
    const index = this.moments.push({ ...moment, parent: this.at, children: [], chosen: null }) - 1;
    this.now.children.push(index);
    this.now.chosen = index;
    this.at = index;
  }

  /** Goes to a moment and makes its branch the chosen one. */
  goTo(index) {
    this.at = index;
    for (let child = index; this.moments[child].parent !== null; child = this.moments[child].parent) {
      this.moments[this.moments[child].parent].chosen = child;
    }
  }

  /** Returns the indices from the first action to the end of the chosen branch. */
  path() {
    const indices = [];
    for (let next = this.moments[0].chosen; next !== null; next = this.moments[next].chosen) indices.push(next);
    return indices;
  }

  /** Returns the indices from the first action to the current moment. */
  past() {
    const indices = [];
    for (let index = this.at; index !== 0; index = this.moments[index].parent) indices.unshift(index);
    return indices;
  }

  /** Goes at most `by` moments along the path. Returns whether the current moment changed. */
  move(by) {
    const stops = [0, ...this.path()];
    const from = stops.indexOf(this.at);
    const to = Math.min(Math.max(from + by, 0), stops.length - 1);
    if (to !== from) this.goTo(stops[to]);
    return to !== from;
  }

  /** Sums the rewards up to the current moment: in total, and by component where known. */
  sums() {
    const sums = { total: 0, operational: 0, progress: 0, terminal: 0, clip: 0 };
    for (const index of this.past()) {
      const { reward, components } = this.moments[index];
      sums.total += reward;
      for (const name of COMPONENTS) sums[name] += components?.[name] ?? 0;
    }
    return sums;
  }
}

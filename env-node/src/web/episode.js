// An episode as a tree of moments. A moment holds the token that leads on from it, so any of them can be played on:
// going back costs nothing, and another action there begins a branch beside the old one.

export const COMPONENTS = ['operational', 'progress', 'terminal', 'clip'];

export class Episode {
  /** `first` is the moment before any action: `{token?, observation?}`; `about` says what is played. */
  constructor(about, first) {
    this.about = about;
    this.moments = [{ ...first, parent: null, children: [], chosen: null }];
    this.at = 0;
  }

  /** The moment that is looked at. */
  get now() {
    return this.moments[this.at];
  }

  /** Adds a moment after the present one and goes there. `moment`: action, result or error, reward, components, …. */
  add(moment) {
    const index = this.moments.push({ ...moment, parent: this.at, children: [], chosen: null }) - 1;
    this.now.children.push(index);
    this.now.chosen = index;
    this.at = index;
  }

  /** Goes to a moment; the path leads through it from now on. */
  goTo(index) {
    this.at = index;
    for (let child = index; this.moments[child].parent !== null; child = this.moments[child].parent) {
      this.moments[this.moments[child].parent].chosen = child;
    }
  }

  /** Indices from the first action to the end of the chosen branch. */
  path() {
    const indices = [];
    for (let next = this.moments[0].chosen; next !== null; next = this.moments[next].chosen) indices.push(next);
    return indices;
  }

  /** Indices from the first action to the present moment. */
  past() {
    const indices = [];
    for (let index = this.at; index !== 0; index = this.moments[index].parent) indices.unshift(index);
    return indices;
  }

  /** Goes `by` moments along the path, as far as there are any; whether it moved. */
  move(by) {
    const stops = [0, ...this.path()];
    const from = stops.indexOf(this.at);
    const to = Math.min(Math.max(from + by, 0), stops.length - 1);
    if (to !== from) this.goTo(stops[to]);
    return to !== from;
  }

  /** Rewards summed to the present moment: by component, where they are known, and in all. */
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

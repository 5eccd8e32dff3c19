"use strict";
// What a trace says about every (layer, token) cell of a step. No drawing, no document: see docs/trace.md.

const STATES = ["absent", "aside", "held", "reused", "computed", "revived"]; // a later one hides an earlier one
const FUTURE = STATES.length; // the token does not exist yet
const NEVER = 0x7fffffff;

// [skip, take, skip, take, ...] -> calls each(start, stop) for every run of positions.
function eachRun(packed, each) {
  let at = 0;
  for (let i = 0; i < packed.length; i += 2) {
    const start = at + packed[i];
    at = start + packed[i + 1];
    each(start, at);
  }
}

function sizeOf(packed) {
  let size = 0;
  for (let i = 1; i < packed.length; i += 2) size += packed[i];
  return size;
}

// The positions in exactly one of two packed sets, packed.
function flipped(packed, other) {
  const edges = new Set();
  const turn = (edge) => edges.delete(edge) || edges.add(edge);
  for (const set of [packed, other]) eachRun(set, (start, stop) => { turn(start); turn(stop); });
  let at = 0;
  return [...edges].sort((a, b) => a - b).map((edge) => {
    const gap = edge - at;
    at = edge;
    return gap;
  });
}

// All sets packed: some are written as what differs from one before them.
function unfolded(written) {
  const sets = [];
  for (const set of written) sets.push(Array.isArray(set) ? set : flipped(sets[set.like], set.flip));
  return sets;
}

class Cells {
  constructor(trace) {
    this.trace = trace;
    this.layers = trace.layers;
    this.tokens = trace.tokens.length;
    this.sets = unfolded(trace.sets);
    this.sizes = this.sets.map(sizeOf);
    // [layers * tokens] the first step that computed a token in a layer.
    this.first = new Int32Array(this.layers * this.tokens).fill(NEVER);
    trace.steps.forEach((step, number) => step.layers.forEach((at, layer) => {
      const base = layer * this.tokens;
      eachRun(this.sets[at.computed], (start, stop) => {
        for (let i = base + start; i < base + stop; i++) this.first[i] = Math.min(this.first[i], number);
      });
    }));
  }

  // [layers * tokens] the state of every cell in a step, an index into STATES or FUTURE.
  states(number) {
    const { sets } = this, { steps } = this.trace, step = steps[number];
    const states = new Uint8Array(this.layers * this.tokens).fill(FUTURE);
    step.layers.forEach((at, layer) => {
      const base = layer * this.tokens;
      states.fill(0, base, base + step.fed[1]);
      [at.aside, at.held, at.read, at.computed, at.revived].forEach((set, i) =>
        eachRun(sets[set], (start, stop) => states.fill(i + 1, base + start, base + stop)));
    });
    return states;
  }

  // [tokens] in how many layers each token has been computed by the end of a step.
  depths(number) {
    const depths = new Uint16Array(this.tokens);
    for (let layer = 0; layer < this.layers; layer++) {
      for (let token = 0; token < this.tokens; token++) {
        if (this.first[layer * this.tokens + token] <= number) depths[token]++;
      }
    }
    return depths;
  }

  // [tokens] 1 where a step revived a token in some layer.
  revived(number) {
    const revived = new Uint8Array(this.tokens);
    for (const at of this.trace.steps[number].layers) {
      eachRun(this.sets[at.revived], (start, stop) => revived.fill(1, start, stop));
    }
    return revived;
  }

  // The steps that revived a token, each with its layers: [[step, [layers]], ...].
  revivals(token) {
    const found = [];
    this.trace.steps.forEach((step, number) => {
      const layers = [];
      step.layers.forEach((at, layer) => eachRun(this.sets[at.revived], (start, stop) => {
        if (start <= token && token < stop) layers.push(layer);
      }));
      if (layers.length) found.push([number, layers]);
    });
    return found;
  }

  // Whether some KV head holds fewer units than its layer has computed, in any snapshot.
  get compresses() {
    return this.trace.snapshots.some(({ known, kept }) => {
      const number = this.trace.steps.findIndex((step) => step.fed[1] >= known);
      return kept.some((heads, layer) => {
        let computed = 0;
        for (let token = 0; token < known; token++) computed += this.first[layer * this.tokens + token] <= number;
        return heads.some((set) => this.sizes[set] < computed);
      });
    });
  }

  // [snapshots][columns] the share of a column's known tokens that a KV head holds, -1 where none is known. Columns
  // divide the tokens known to the last snapshot.
  shares(layer, head, columns) {
    const { snapshots } = this.trace, all = snapshots[snapshots.length - 1].known;
    const edges = Array.from({ length: columns + 1 }, (_, i) => Math.floor((i * all) / columns));
    return snapshots.map(({ known, kept }) => {
      const counts = new Float64Array(columns);
      let column = 0;
      eachRun(this.sets[kept[layer][head]], (start, stop) => {
        while (edges[column + 1] <= start) column++;
        for (let i = column; i < columns && edges[i] < stop; i++) {
          counts[i] += Math.min(stop, edges[i + 1]) - Math.max(start, edges[i]);
        }
      });
      return Array.from(counts, (held, i) => (edges[i] < known ? held / (Math.min(known, edges[i + 1]) - edges[i]) : -1));
    });
  }

  // Per snapshot that knows a token: [known, in how many KV heads its unit is held].
  holders(token) {
    return this.trace.snapshots.filter(({ known }) => token < known).map(({ known, kept }) => {
      let count = 0;
      for (const set of kept.flat()) eachRun(this.sets[set], (start, stop) => { count += start <= token && token < stop; });
      return [known, count];
    });
  }

  // Whether some steps are slow and others are not; the plan has no such thing where no step says.
  get paced() { return this.trace.steps.some((step) => step.slow !== null); }

  // The positions of the tokens that slow steps were fed, up to a step.
  slowlyFed(number) {
    return new Set(this.trace.steps.slice(0, number + 1).filter((step) => step.slow).map((step) => step.fed[0]));
  }

  // Sums over the layers of a step.
  counts(number) {
    const step = this.trace.steps[number];
    const sum = (name) => step.layers.reduce((total, at) => total + this.sizes[at[name]], 0);
    return {
      rows: sum("computed"), revived: sum("revived"), aside: sum("aside"), rowsFull: step.rows_full, unitsFull: step.units_full,
      unitsRead: step.layers.reduce((total, at) => total + at.units_read, 0),
    };
  }
}

if (typeof module === "object") module.exports = { Cells, STATES, FUTURE };

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

class Cells {
  constructor(trace) {
    this.trace = trace;
    this.layers = trace.layers;
    this.tokens = trace.tokens.length;
    this.sizes = trace.sets.map(sizeOf);
    // [layers * tokens] the first step that computed a token in a layer.
    this.first = new Int32Array(this.layers * this.tokens).fill(NEVER);
    trace.steps.forEach((step, number) => step.layers.forEach((at, layer) => {
      const base = layer * this.tokens;
      eachRun(trace.sets[at.computed], (start, stop) => {
        for (let i = base + start; i < base + stop; i++) this.first[i] = Math.min(this.first[i], number);
      });
    }));
  }

  // [layers * tokens] the state of every cell in a step, an index into STATES or FUTURE.
  states(number) {
    const { sets, steps } = this.trace, step = steps[number];
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
      eachRun(this.trace.sets[at.revived], (start, stop) => revived.fill(1, start, stop));
    }
    return revived;
  }

  // The steps that revived a token, each with its layers: [[step, [layers]], ...].
  revivals(token) {
    const found = [];
    this.trace.steps.forEach((step, number) => {
      const layers = [];
      step.layers.forEach((at, layer) => eachRun(this.trace.sets[at.revived], (start, stop) => {
        if (start <= token && token < stop) layers.push(layer);
      }));
      if (layers.length) found.push([number, layers]);
    });
    return found;
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

// The grid of layers (the last on top) by tokens. The canvas is as wide as the window and stays in place while a spacer
// scrolls under it, so a text of any length is drawn in one screen's worth of work.

const GUTTER = 46, HEAD = 14, LABELS = 92, TICKS = 24, WIDEST = 30;
const WEIGHTS = [...STATES.map((state) => (state === "revived" ? 4 : 1)), 1]; // of a token in a column it shares

class Grid {
  constructor(canvas, scroller, spacer, cells) {
    Object.assign(this, { canvas, scroller, spacer, cells });
    this.context = canvas.getContext("2d");
    this.rowHeight = Math.max(6, Math.min(30, Math.floor(330 / cells.layers)));
    this.width = 0; // pixels per token; 0: fit
    this.pointed = null; // [layer, first token, after the last]
    this.chosen = null; // token
    scroller.addEventListener("scroll", () => this.draw());
  }

  get room() { return Math.max(50, this.scroller.clientWidth - GUTTER); }
  get fitted() { return Math.min(WIDEST, this.room / this.cells.tokens); }
  get token() { return this.width || this.fitted; }
  get labelled() { return this.token >= 13; }
  get bottom() { return HEAD + this.rowHeight * this.cells.layers; }

  show(number) {
    this.number = number;
    this.states = this.cells.states(number);
    this.draw();
  }

  // Zoom by a factor around a place of the window, in pixels from its left; factor 0 shows everything.
  zoom(factor, at = GUTTER + this.room / 2) {
    const token = (this.scroller.scrollLeft + at - GUTTER) / this.token;
    const wanted = this.token * factor;
    this.width = wanted <= this.fitted ? 0 : Math.min(WIDEST, wanted);
    this.draw();
    this.scroller.scrollLeft = token * this.token - at + GUTTER;
    this.draw();
  }

  reveal(token) {
    const left = token * this.token, from = this.scroller.scrollLeft;
    if (left < from || left + this.token > from + this.room) this.scroller.scrollLeft = left - this.room / 2;
    this.draw();
  }

  // The cell at a place of the canvas, as `pointed`; null outside.
  at(x, y) {
    const layer = this.cells.layers - 1 - Math.floor((y - HEAD) / this.rowHeight);
    const place = (x - GUTTER + this.scroller.scrollLeft) / this.token;
    const first = Math.floor(place), last = Math.floor(place + 1 / this.token);
    if (x < GUTTER || layer < 0 || layer >= this.cells.layers || first >= this.cells.tokens) return null;
    return [layer, first, this.token >= 1 ? first + 1 : Math.min(this.cells.tokens, Math.max(first + 1, last))];
  }

  draw() {
    if (!this.states) return;
    const ratio = window.devicePixelRatio || 1, wide = this.scroller.clientWidth;
    const high = this.bottom + (this.labelled ? LABELS : TICKS);
    this.spacer.style.width = `${Math.ceil(GUTTER + this.token * this.cells.tokens)}px`;
    this.canvas.style.width = `${wide}px`;
    this.canvas.style.height = `${high}px`;
    this.canvas.width = Math.round(wide * ratio);
    this.canvas.height = Math.round(high * ratio);
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    const from = this.scroller.scrollLeft / this.token;
    const first = Math.floor(from), last = Math.min(this.cells.tokens, Math.ceil(from + this.room / this.token));
    this.x = (token) => GUTTER + Math.round(token * this.token - this.scroller.scrollLeft);
    if (this.token < 1) this.drawMixed();
    else for (let layer = 0; layer < this.cells.layers; layer++) this.drawCells(layer, first, last);
    this.drawMarks();
    this.drawAxis(first, last);
    this.drawGutter(wide);
  }

  y(layer) { return HEAD + (this.cells.layers - 1 - layer) * this.rowHeight; }

  drawCells(layer, first, last) {
    const c = this.context, base = layer * this.cells.tokens, y = this.y(layer);
    const gap = this.token >= 5 ? 1 : 0, high = this.rowHeight - (this.rowHeight >= 8 ? 1 : 0);
    for (let token = first; token < last; token++) {
      const state = this.states[base + token];
      if (state === FUTURE) continue;
      const x = this.x(token), wide = Math.max(1, this.x(token + 1) - x - gap);
      c.fillStyle = this.palette.css[state];
      c.fillRect(x, y, wide, high);
      if (wide < 7 || high < 9) continue;
      c.fillStyle = this.palette.mark; // a shape besides the colour: a dot for revived, a bar for parked
      if (STATES[state] === "revived") {
        c.beginPath();
        c.arc(x + wide / 2, y + high / 2, Math.min(3, wide / 4), 0, 2 * Math.PI);
        c.fill();
      } else if (STATES[state] === "aside") c.fillRect(x + wide / 4, y + high / 2 - 1, wide / 2, 2);
    }
  }

  // Less than a pixel per token: every column of pixels has the mean colour of its tokens. Revived ones are few and are
  // what one looks for, so they weigh more. Drawn as an image of one pixel per layer and column: there are many columns.
  drawMixed() {
    const { layers, tokens } = this.cells, wide = Math.floor(this.room), from = this.scroller.scrollLeft;
    const strip = document.createElement("canvas"), context = strip.getContext("2d");
    strip.width = wide;
    strip.height = layers;
    const image = context.createImageData(wide, layers);
    for (let column = 0; column < wide; column++) {
      const first = Math.floor((column + from) / this.token);
      const last = Math.min(tokens, Math.max(first + 1, Math.floor((column + 1 + from) / this.token)));
      if (first >= tokens) break;
      for (let layer = 0; layer < layers; layer++) {
        this.mix(layer * tokens + first, layer * tokens + last, image.data, 4 * (layer * wide + column));
      }
    }
    context.putImageData(image, 0, 0);
    this.context.imageSmoothingEnabled = false;
    const high = this.rowHeight - (this.rowHeight >= 8 ? 1 : 0);
    for (let layer = 0; layer < layers; layer++) {
      this.context.drawImage(strip, 0, layer, wide, 1, GUTTER, this.y(layer), wide, high);
    }
  }

  // The mean colour of the cells [first, last), into the pixel at a place of `pixels`.
  mix(first, last, pixels, place) {
    let red = 0, green = 0, blue = 0, total = 0;
    for (let cell = first; cell < last; cell++) {
      const state = this.states[cell], weight = WEIGHTS[state], colour = this.palette.rgb[state];
      red += weight * colour[0];
      green += weight * colour[1];
      blue += weight * colour[2];
      total += weight;
    }
    pixels[place] = red / total;
    pixels[place + 1] = green / total;
    pixels[place + 2] = blue / total;
    pixels[place + 3] = 255;
  }

  drawMarks() {
    const c = this.context, { trace } = this.cells, step = trace.steps[this.number];
    c.fillStyle = this.palette.slow;
    for (const token of this.cells.slowlyFed(this.number)) {
      c.fillRect(this.x(token), HEAD - 4, Math.max(2, this.x(token + 1) - this.x(token) - 1), 3);
    }
    c.fillStyle = step.slow ? this.palette.slow : this.palette.ink;
    if (step.phase === "decode") {
      const x = (this.x(step.fed[0]) + this.x(step.fed[1])) / 2;
      c.beginPath();
      c.moveTo(x - 5, 3); c.lineTo(x + 5, 3); c.lineTo(x, 10);
      c.fill();
    }
    const end = this.x(trace.prompt);
    c.strokeStyle = this.palette.soft;
    c.lineWidth = 1;
    c.setLineDash([3, 3]);
    c.beginPath();
    c.moveTo(end - 0.5, HEAD - 4); c.lineTo(end - 0.5, this.bottom + 5);
    c.stroke();
    c.setLineDash([]);
    if (this.chosen !== null) this.outline(this.chosen, this.chosen + 1, HEAD - 2, this.bottom + 1);
    if (this.pointed) {
      const [layer, first, last] = this.pointed;
      this.outline(first, last, this.y(layer) - 1, this.y(layer) + this.rowHeight);
    }
  }

  outline(first, last, top, bottom) {
    const x = this.x(first), wide = Math.max(3, this.x(last) - x);
    this.context.lineWidth = 2;
    this.context.strokeStyle = this.palette.ink;
    this.context.strokeRect(x - 1, top, wide + 1, bottom - top);
  }

  drawAxis(first, last) {
    const c = this.context, { trace } = this.cells;
    c.fillStyle = this.palette.soft;
    if (this.labelled) {
      c.font = "11px system-ui, 'DejaVu Sans', sans-serif";
      for (let token = first; token < last; token++) {
        c.save();
        c.translate((this.x(token) + this.x(token + 1)) / 2 + 3, this.bottom + 7);
        c.rotate(Math.PI / 2.6);
        c.fillStyle = token < trace.prompt ? this.palette.soft : this.palette.ink;
        c.fillText(visible(trace.tokens[token].text).slice(0, 13), 0, 0);
        c.restore();
      }
      return;
    }
    c.font = "11px system-ui, 'DejaVu Sans', sans-serif";
    c.textAlign = "center";
    const apart = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5].find((n) => n * this.token >= 70) || 2e5;
    for (let token = Math.ceil(first / apart) * apart; token < last; token += apart) {
      c.fillRect(this.x(token), this.bottom + 1, 1, 4);
      c.fillText(token.toLocaleString("en"), Math.max(this.x(token), GUTTER + 4), this.bottom + 17);
    }
    c.textAlign = "start";
  }

  drawGutter(wide) {
    const c = this.context, { trace, layers } = this.cells;
    c.fillStyle = this.palette.panel;
    c.fillRect(0, 0, GUTTER - 1, this.canvas.height);
    c.fillStyle = this.palette.soft;
    c.font = "11px system-ui, 'DejaVu Sans', sans-serif";
    c.textAlign = "right";
    c.textBaseline = "middle";
    const every = Math.ceil(12 / this.rowHeight);
    for (let layer = 0; layer < layers; layer += every) {
      c.fillText(layer ? String(layer) : "layer 0", GUTTER - 6, this.y(layer) + this.rowHeight / 2);
    }
    c.textAlign = "start";
    c.textBaseline = "alphabetic";
    for (const layer of trace.entrances) { // where the policy chooses, between two layers
      c.fillRect(GUTTER - 5, this.y(layer) + this.rowHeight - 1, 5, 1);
      c.fillRect(GUTTER - 1, this.y(layer) + this.rowHeight - 1, Math.min(wide - GUTTER, this.cells.tokens * this.token) + 1, 1);
    }
  }
}

// Text that can be seen: spaces and line breaks as signs, a part of a character as a dot.
function visible(text) {
  return text === "" ? "·" : text.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/^ | $/g, "␣");
}

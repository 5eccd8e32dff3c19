// What every KV head kept: a picture per layer (the last on top) and head. From left to right the text, a row of pixels per
// snapshot from the first down to the last.

const PICTURE = 120, LEAST_ROW = 2, MOST_ROW = 16; // heights in pixels

class Kept {
  constructor(box, cells) {
    Object.assign(this, { box, cells, chosen: null, pictures: [] });
    const { layers, kv_heads: heads, snapshots } = cells.trace;
    this.tokens = snapshots[snapshots.length - 1].known;
    this.row = Math.max(LEAST_ROW, Math.min(MOST_ROW, Math.floor(PICTURE / snapshots.length)));
    box.style.setProperty("--heads", heads);
    element(box, "span");
    for (let head = 0; head < heads; head++) element(box, "span", `KV head ${head}`, "head");
    for (let layer = layers - 1; layer >= 0; layer--) {
      element(box, "span", layer ? `${layer}` : "layer 0", "layer");
      for (let head = 0; head < heads; head++) {
        const canvas = element(box, "canvas");
        Object.assign(canvas.dataset, { layer, head });
        canvas.style.height = `${this.row * snapshots.length}px`;
        this.pictures.push(canvas);
      }
    }
    element(box, "span");
    for (let head = 0; head < heads; head++) {
      const axis = element(box, "span", "", "ends");
      for (const end of [0, this.tokens]) element(axis, "span", end.toLocaleString("en"));
    }
  }

  draw() {
    for (const canvas of this.pictures) {
      const wide = Math.max(1, Math.floor(canvas.clientWidth * (window.devicePixelRatio || 1)));
      this.paint(canvas, Math.min(wide, this.tokens));
    }
  }

  // One pixel per column and snapshot; the style makes the canvas as large as it is shown.
  paint(canvas, columns) {
    const { layer, head } = canvas.dataset, rows = this.cells.shares(Number(layer), Number(head), columns);
    canvas.width = columns;
    canvas.height = rows.length;
    const context = canvas.getContext("2d"), image = context.createImageData(columns, rows.length);
    const [none, all, future] = ["absent", "computed", "future"].map((state) => this.palette.rgb[[...STATES, "future"].indexOf(state)]);
    rows.forEach((row, number) => row.forEach((share, column) => {
      // The root of the share: a few units among many tokens are what one looks for.
      const depth = Math.sqrt(Math.max(0, share)), place = 4 * (number * columns + column);
      for (let i = 0; i < 3; i++) image.data[place + i] = share < 0 ? future[i] : none[i] + depth * (all[i] - none[i]);
      image.data[place + 3] = 255;
    }));
    context.putImageData(image, 0, 0);
    if (this.chosen === null || this.chosen >= this.tokens) return;
    context.fillStyle = this.palette.chosen;
    context.fillRect(Math.ceil(((this.chosen + 1) * columns) / this.tokens) - 1, 0, Math.max(1, columns / 400), rows.length);
  }

  // What a picture shows under the mouse: layer, head, snapshot, first token, after the last; null outside.
  at(event) {
    if (event.target.tagName !== "CANVAS") return null;
    const canvas = event.target, box = canvas.getBoundingClientRect(), count = this.cells.trace.snapshots.length;
    const place = (event.clientX - box.left) / box.width;
    const column = Math.max(0, Math.min(canvas.width - 1, Math.floor(place * canvas.width)));
    const snapshot = Math.max(0, Math.min(count - 1, Math.floor(((event.clientY - box.top) / box.height) * count)));
    const [first, stop] = [column, column + 1].map((edge) => Math.floor((edge * this.tokens) / canvas.width));
    return { layer: Number(canvas.dataset.layer), head: Number(canvas.dataset.head), snapshot, first, stop };
  }
}

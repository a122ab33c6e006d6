// The positions of the nodes of a graph. Columns are from left to right, and a node is after all its inputs.

export const WIDTH = 208;
const LINE = 16;
const HEAD = 34;
const PADDING = 8;
const GAP_X = 56;
const GAP_Y = 24;
const MOST_VALUES = 5;
const SWEEPS = 4;

/** Returns {width, height, boxes: Map(id -> {x, y, width, height, node}), edges: [{from, to, output, input, path}]}. */
export function layout(nodes) {
  const known = new Map(nodes.map((node) => [node.id, node]));
  const columns = ordered(columnsOf(nodes, known), known);
  const boxes = placed(columns);
  const edges = nodes.flatMap((node) =>
    node.links
      .filter((link) => known.has(link.from))
      .map((link, index) => edge(link, node, index, boxes)),
  );
  const all = [...boxes.values()];
  const furthest = (side, size) => Math.max(0, ...all.map((box) => box[side] + box[size])) + GAP_Y;
  return { width: furthest("x", "width"), height: furthest("y", "height"), boxes, edges };
}

/** Returns the nodes by their distance from the sources. A cycle, which the service refuses, is cut at one link. */
function columnsOf(nodes, known) {
  const depths = new Map();
  for (const { id } of nodes) if (!depths.has(id)) measure(id, known, depths);
  const columns = [];
  for (const node of nodes) (columns[depths.get(node.id)] ??= []).push(node);
  return columns;
}

/** Computes distances without recursion, because a graph may be a thousand nodes deep. */
function measure(start, known, depths) {
  const path = [start];
  const onPath = new Set(path);
  while (path.length) {
    const id = path.at(-1);
    const before = known.get(id).links.map((link) => link.from).filter((from) => known.has(from));
    const next = before.find((from) => !depths.has(from) && !onPath.has(from));
    if (next === undefined) {
      depths.set(id, Math.max(-1, ...before.map((from) => depths.get(from) ?? -1)) + 1);
      onPath.delete(path.pop());
    } else {
      path.push(next);
      onPath.add(next);
    }
  }
}

/** Sorts each column by the mean position of the nodes' inputs. */
function ordered(columns, known) {
  const place = new Map();
  const note = () => columns.forEach((column) => column.forEach((node, index) => place.set(node.id, index)));
  note();
  for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
    for (const column of columns) {
      const middle = new Map(column.map((node) => [node.id, middleOf(node, known, place)]));
      column.sort((one, other) => middle.get(one.id) - middle.get(other.id));
    }
    note();
  }
  return columns;
}

function middleOf(node, known, place) {
  const before = node.links.filter((link) => known.has(link.from)).map((link) => place.get(link.from));
  return before.length ? before.reduce((sum, each) => sum + each, 0) / before.length : place.get(node.id);
}

function placed(columns) {
  const heights = columns.map((column) => column.reduce((sum, node) => sum + heightOf(node) + GAP_Y, 0));
  const tallest = Math.max(0, ...heights);
  const boxes = new Map();
  columns.forEach((column, index) => {
    let y = GAP_Y + (tallest - heights[index]) / 2;
    for (const node of column) {
      const height = heightOf(node);
      boxes.set(node.id, { x: GAP_Y + index * (WIDTH + GAP_X), y, width: WIDTH, height, node });
      y += height + GAP_Y;
    }
  });
  return boxes;
}

/** Returns the values that are shown on a node. */
export function shownValues(node) {
  return node.values.slice(0, MOST_VALUES);
}

function heightOf(node) {
  const lines = Math.max(shownValues(node).length + (node.values.length > MOST_VALUES ? 1 : 0), node.links.length, 1);
  return HEAD + lines * LINE + PADDING * 2;
}

function edge(link, node, index, boxes) {
  const [from, to] = [boxes.get(link.from), boxes.get(node.id)];
  const [x1, y1] = [from.x + from.width, from.y + HEAD / 2];
  const [x2, y2] = [to.x, to.y + HEAD + PADDING + index * LINE + LINE / 2];
  const bend = Math.max(GAP_X / 2, Math.abs(x2 - x1) / 2);
  const path = `M ${x1} ${y1} C ${x1 + bend} ${y1}, ${x2 - bend} ${y2}, ${x2} ${y2}`;
  return { from: link.from, to: node.id, output: link.output, input: link.input, path };
}

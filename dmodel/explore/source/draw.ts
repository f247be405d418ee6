/** Bars, lines and tables as pieces, which the page is brought to in place; all text is set as text,
 * never as HTML. */

import { short } from "./words";

const COLORS = 16;
const SVG = "http://www.w3.org/2000/svg";
type Attributes = Record<string, string | number>;

/** An element as it shall be: with attributes, what stands in it, and what a click does. */
export interface Piece {
  name: string; attributes: Attributes; inside: (Piece | string)[]; press?: () => void;
}
type Part = Piece | string;

export function node(name: string, attributes: Attributes, ...inside: Part[]): Piece {
  return { name, attributes, inside };
}

export function element(name: string, text = "", kind = ""): Piece {
  return node(name, kind ? { class: kind } : {}, ...(text ? [text] : []));
}

const SHOWN = new WeakMap<Node, Piece>();

function made(parent: Element, part: Part): Node {
  if (typeof part === "string") return document.createTextNode(part);
  const inSvg = part.name === "svg" || parent.namespaceURI === SVG;
  const found = inSvg ? document.createElementNS(SVG, part.name) : document.createElement(part.name);
  if (part.press) found.addEventListener("click", () => SHOWN.get(found)!.press?.());
  SHOWN.set(found, { ...part, attributes: {} });
  bring(found, part);
  return found;
}

/** Whether a node can be brought to a part: what a click does is set once, if at all. */
function fits(there: Node, part: Part): boolean {
  if (typeof part === "string") return there.nodeType === Node.TEXT_NODE;
  const known = SHOWN.get(there);
  return known !== undefined && known.name === part.name && !known.press === !part.press;
}

function bring(there: Node, part: Part): void {
  if (typeof part === "string") {
    if ((there as Text).data !== part) (there as Text).data = part;
    return;
  }
  const of = there as Element, { attributes: before } = SHOWN.get(of)!, { attributes } = part;
  for (const key in attributes) if (before[key] !== attributes[key]) of.setAttribute(key, String(attributes[key]));
  for (const key in before) if (!(key in attributes)) of.removeAttribute(key);
  SHOWN.set(of, part);
  fill(of, part.inside);
}

/** Brings what stands in an element to some parts; nodes that stay as they are are not touched. */
export function fill(parent: Element, parts: Part[]): void {
  let there = parent.firstChild;
  for (const part of parts) {
    if (there && fits(there, part)) bring(there, part);
    else {
      const anew = made(parent, part);
      if (there) there.replaceWith(anew);
      else parent.append(anew);
      there = anew.nextSibling;
      continue;
    }
    there = there.nextSibling;
  }
  while (there) {
    const next: ChildNode | null = there.nextSibling;
    there.remove();
    there = next;
  }
}

export type Cell = string | Piece;

/** A table: the first cell of a row heads it; `words` are columns of words; `drawn` stands above. */
export function table(
  caption: string, head: string[], rows: Cell[][], kind = "figures", words: number[] = [], drawn: Piece[] = [],
): Piece {
  const side = (i: number): Attributes => (words.includes(i) ? { class: "words" } : {});
  const heads = head.map((text, i) => (text ? node("th", { scope: "col", ...side(i) }, text) : node("td", side(i))));
  const lines = rows.map((row) => node("tr", {}, ...row.map((each, i) =>
    node(i ? "td" : "th", { ...side(i), ...(i ? {} : { scope: "row" }) }, each))));
  return node("table", { class: kind }, node("caption", {}, caption, ...drawn),
    node("thead", {}, node("tr", {}, ...heads)), node("tbody", {}, ...lines));
}

export interface Segment { name: string; value: number; color: number }
export interface Stack { label: string; segments: Segment[]; mark?: number }

/** Bars of segments one beside the other, one scale for all; what they say stands in a table. */
export function stacks(of: Stack[], most: number, label: string): Piece {
  const height = 26 * of.length, name = of.length > 1 ? 12 : 0;
  const whole = height + name * of.length;
  const inside = [node("title", {}, label)];
  of.forEach((each, k) => {
    const top = k * (26 + name) + name;
    if (name) inside.push(node("text", { x: 0, y: top - 3 }, each.label));
    let x = 0;
    for (const { value, color, name: title } of each.segments) {
      const width = (600 * Math.max(value, 0)) / most;
      inside.push(node("rect", { x, y: top, width, height: 22, class: `c${color % COLORS}` }, node("title", {}, title)));
      x += width;
    }
    if (each.mark !== undefined) {
      const at = Math.min((600 * each.mark) / most, 598.5);
      inside.push(node("path", { d: `M${at} ${top - 2}V${top + 24}`, class: "mark" }));
    }
  });
  return node("svg", { viewBox: `0 0 600 ${whole}`, role: "img", class: "stack" }, ...inside);
}

export function swatch(color: number): Piece {
  return element("span", "", `swatch c${color % COLORS}`);
}

export interface Row { name: string; value: number; text: string }

/** A tornado: a bar for each row about zero; the same as a table for those who do not see it. */
export function tornado(rows: Row[], label: string): Piece {
  const most = Math.max(...rows.map((row) => Math.abs(row.value)), 1e-12);
  const negative = rows.some((row) => row.value < 0), positive = rows.some((row) => row.value > 0);
  const both = negative && positive, zero = both ? 50 : negative ? 100 : 0;
  const cells = rows.map((row) => {
    const width = Math.max((Math.abs(row.value) / most) * (both ? 50 : 100), 0.3);
    const x = row.value < 0 ? zero - width : zero;
    const svg = node("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" },
      node("rect", { x, y: 1, width, height: 8, class: row.value < 0 ? "minus" : "plus" }),
      node("path", { d: `M${zero} 0V10`, class: "zero" }));
    return [row.name, node("div", { class: "bar" }, svg), row.text] as Cell[];
  });
  return table(label, ["size", "", "step time"], cells, "bars");
}

export interface Point { x: number; y: number; title: string }
export interface Curve {
  points: [number, number][]; here: [number, number]; slope: number | null; x: string; y: string;
  ends?: [number, number]; measured?: number; others: Point[]; pinned: [number, number][];
  /** Whether numbers of the axis are written as powers. */
  power?: boolean;
}

const LEFT = 54, RIGHT = 390, TOP = 12, FOOT = 190;

/** A curve over a logarithmic axis, with the point where the page stands, its tangent and interval,
 * what was measured, and a second curve. */
export function curve(of: Curve): Piece {
  const all = [...of.points, ...of.pinned, of.here, ...of.others.map(({ x, y }) => [x, y])];
  const xs = all.map(([x]) => Math.log(x));
  const [left, right] = [Math.min(...xs), Math.max(...xs)];
  const top = 1.08 * Math.max(...all.map(([, y]) => y), of.measured ?? 0, of.ends?.[1] ?? 0);
  const px = (x: number) => LEFT + ((RIGHT - LEFT) * (Math.log(x) - left)) / (right - left || 1);
  const py = (y: number) => FOOT - ((FOOT - TOP) * y) / top;
  const inside = [node("title", {}, `${of.y} over ${of.x}: here ${short(of.here[1])}`)];
  inside.push(node("path", { d: `M${LEFT} ${TOP}V${FOOT}H${RIGHT}`, class: "axis" }));
  for (const part of [0.5, 1]) {
    const y = py((top / 1.08) * part);
    inside.push(node("path", { d: `M${LEFT} ${y}H${RIGHT}`, class: "grid" }));
    inside.push(node("text", { x: LEFT - 5, y: y + 3, "text-anchor": "end" }, short((top / 1.08) * part)));
  }
  const path = (points: [number, number][]) =>
    points.map(([x, y], i) => `${i ? "L" : "M"}${px(x).toFixed(2)} ${py(y).toFixed(2)}`).join("");
  if (of.pinned.length > 1) inside.push(node("path", { d: path(of.pinned), class: "second" }));
  if (of.points.length > 1) inside.push(node("path", { d: path(of.points), class: "line" }));
  if (of.slope !== null) {
    const at = Math.log(of.here[0]);
    const ends = [at - 0.35, at + 0.35].map((x) => Math.min(Math.max(x, left), right));
    const [a, b] = ends.map((x) => `${px(Math.exp(x))} ${py(of.here[1] + of.slope! * (x - at))}`);
    inside.push(node("path", { d: `M${a}L${b}`, class: "tangent" }));
  }
  for (const { x, y, title } of of.others) {
    inside.push(node("circle", { cx: px(x), cy: py(y), r: 3.5, class: "other" }, node("title", {}, title)));
  }
  const x = px(of.here[0]);
  if (of.ends) inside.push(node("path", { d: `M${x} ${py(of.ends[0])}V${py(of.ends[1])}`, class: "ends" }));
  inside.push(node("circle", { cx: x, cy: py(of.here[1]), r: 4, class: "here" }));
  if (of.measured !== undefined) {
    const y = py(of.measured), cross = `M${x - 5} ${y - 5}L${x + 5} ${y + 5}M${x - 5} ${y + 5}L${x + 5} ${y - 5}`;
    inside.push(node("path", { d: cross, class: "mark" }));
  }
  inside.push(node("text", { x: LEFT - 5, y: FOOT + 3, "text-anchor": "end" }, "0"));
  const end = (value: number) => (of.power ? value.toExponential(0) : short(value));
  inside.push(node("text", { x: LEFT, y: FOOT + 14 }, end(Math.exp(left))));
  inside.push(node("text", { x: RIGHT, y: FOOT + 14, "text-anchor": "end" }, end(Math.exp(right))));
  inside.push(node("text", { x: (LEFT + RIGHT) / 2, y: FOOT + 30, "text-anchor": "middle" }, of.x));
  return node("svg", { viewBox: "0 0 400 226", role: "img", class: "curve" }, ...inside);
}

/** Bars, lines and tables; all text is set as text, never as HTML. */

const COLORS = 16;
const SVG = "http://www.w3.org/2000/svg";
type Attributes = Record<string, string | number>;

export function node(name: string, attributes: Attributes, text = ""): SVGElement {
  const found = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) found.setAttribute(key, String(value));
  if (text) found.textContent = text;
  return found;
}

export function element(name: string, text = "", kind = ""): HTMLElement {
  const found = document.createElement(name);
  found.textContent = text;
  if (kind) found.className = kind;
  return found;
}

export type Cell = string | Node;

/** A table: the first cell of a row heads it; `words` are columns of words. */
export function table(
  caption: string, head: string[], rows: Cell[][], kind = "figures", words: number[] = [],
): HTMLElement {
  const found = element("table", "", kind), top = element("tr"), body = element("tbody");
  head.forEach((text) => {
    const cell = text ? element("th", text) : element("td");
    if (text) cell.setAttribute("scope", "col");
    if (words.includes(top.childElementCount)) cell.className = "words";
    top.append(cell);
  });
  const group = element("thead");
  group.append(top);
  for (const row of rows) {
    const line = element("tr");
    row.forEach((each, i) => {
      const cell = element(i ? "td" : "th", "", words.includes(i) ? "words" : "");
      if (!i) cell.setAttribute("scope", "row");
      cell.append(each);
      line.append(cell);
    });
    body.append(line);
  }
  found.append(element("caption", caption), group, body);
  return found;
}

export interface Segment { name: string; value: number; color: number }
export interface Stack { label: string; segments: Segment[]; mark?: number }

/** Bars of segments one beside the other, one scale for all; what they say stands in a table. */
export function stacks(of: Stack[], most: number, label: string): SVGElement {
  const height = 26 * of.length, name = of.length > 1 ? 12 : 0;
  const whole = height + name * of.length;
  const svg = node("svg", { viewBox: `0 0 600 ${whole}`, role: "img", class: "stack" });
  svg.append(node("title", {}, label));
  of.forEach((each, k) => {
    const top = k * (26 + name) + name;
    if (name) svg.append(node("text", { x: 0, y: top - 3 }, each.label));
    let x = 0;
    for (const { value, color, name: title } of each.segments) {
      const width = (600 * Math.max(value, 0)) / most;
      const rect = node("rect", { x, y: top, width, height: 22, class: `c${color % COLORS}` });
      rect.append(node("title", {}, title));
      svg.append(rect);
      x += width;
    }
    if (each.mark !== undefined) {
      const at = Math.min((600 * each.mark) / most, 598.5);
      svg.append(node("path", { d: `M${at} ${top - 2}V${top + 24}`, class: "mark" }));
    }
  });
  return svg;
}

export function swatch(color: number): HTMLElement {
  return element("span", "", `swatch c${color % COLORS}`);
}

export interface Row { name: string; value: number; text: string }

/** A tornado: a bar for each row about zero; the same as a table for those who do not see it. */
export function tornado(rows: Row[], label: string): HTMLElement {
  const most = Math.max(...rows.map((row) => Math.abs(row.value)), 1e-12);
  const negative = rows.some((row) => row.value < 0), positive = rows.some((row) => row.value > 0);
  const both = negative && positive, zero = both ? 50 : negative ? 100 : 0;
  const cells = rows.map((row) => {
    const width = Math.max((Math.abs(row.value) / most) * (both ? 50 : 100), 0.3);
    const svg = node("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" });
    const x = row.value < 0 ? zero - width : zero;
    svg.append(node("rect", { x, y: 1, width, height: 8, class: row.value < 0 ? "minus" : "plus" }));
    svg.append(node("path", { d: `M${zero} 0V10`, class: "zero" }));
    const bar = element("div", "", "bar");
    bar.append(svg);
    return [row.name, bar, row.text] as Cell[];
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
const show = (value: number) => value.toLocaleString("en", { maximumSignificantDigits: 3 });

/** A curve over a logarithmic axis, with the point where the page stands, its tangent and interval,
 * what was measured, and a second curve. */
export function curve(of: Curve): SVGElement {
  const all = [...of.points, ...of.pinned, of.here, ...of.others.map(({ x, y }) => [x, y])];
  const xs = all.map(([x]) => Math.log(x));
  const [left, right] = [Math.min(...xs), Math.max(...xs)];
  const top = 1.08 * Math.max(...all.map(([, y]) => y), of.measured ?? 0, of.ends?.[1] ?? 0);
  const px = (x: number) => LEFT + ((RIGHT - LEFT) * (Math.log(x) - left)) / (right - left || 1);
  const py = (y: number) => FOOT - ((FOOT - TOP) * y) / top;
  const svg = node("svg", { viewBox: "0 0 400 226", role: "img", class: "curve" });
  svg.append(node("title", {}, `${of.y} over ${of.x}: here ${show(of.here[1])}`));
  svg.append(node("path", { d: `M${LEFT} ${TOP}V${FOOT}H${RIGHT}`, class: "axis" }));
  for (const part of [0.5, 1]) {
    const y = py((top / 1.08) * part);
    svg.append(node("path", { d: `M${LEFT} ${y}H${RIGHT}`, class: "grid" }));
    svg.append(node("text", { x: LEFT - 5, y: y + 3, "text-anchor": "end" }, show((top / 1.08) * part)));
  }
  const path = (points: [number, number][]) =>
    points.map(([x, y], i) => `${i ? "L" : "M"}${px(x).toFixed(2)} ${py(y).toFixed(2)}`).join("");
  if (of.pinned.length > 1) svg.append(node("path", { d: path(of.pinned), class: "second" }));
  if (of.points.length > 1) svg.append(node("path", { d: path(of.points), class: "line" }));
  if (of.slope !== null) {
    const at = Math.log(of.here[0]);
    const ends = [at - 0.35, at + 0.35].map((x) => Math.min(Math.max(x, left), right));
    const [a, b] = ends.map((x) => `${px(Math.exp(x))} ${py(of.here[1] + of.slope! * (x - at))}`);
    svg.append(node("path", { d: `M${a}L${b}`, class: "tangent" }));
  }
  for (const { x, y, title } of of.others) {
    const dot = node("circle", { cx: px(x), cy: py(y), r: 3.5, class: "other" });
    dot.append(node("title", {}, title));
    svg.append(dot);
  }
  const x = px(of.here[0]);
  if (of.ends) svg.append(node("path", { d: `M${x} ${py(of.ends[0])}V${py(of.ends[1])}`, class: "ends" }));
  svg.append(node("circle", { cx: x, cy: py(of.here[1]), r: 4, class: "here" }));
  if (of.measured !== undefined) {
    const y = py(of.measured), cross = `M${x - 5} ${y - 5}L${x + 5} ${y + 5}M${x - 5} ${y + 5}L${x + 5} ${y - 5}`;
    svg.append(node("path", { d: cross, class: "mark" }));
  }
  svg.append(node("text", { x: LEFT - 5, y: FOOT + 3, "text-anchor": "end" }, "0"));
  const end = (value: number) => (of.power ? value.toExponential(0) : show(value));
  svg.append(node("text", { x: LEFT, y: FOOT + 14 }, end(Math.exp(left))));
  svg.append(node("text", { x: RIGHT, y: FOOT + 14, "text-anchor": "end" }, end(Math.exp(right))));
  svg.append(node("text", { x: (LEFT + RIGHT) / 2, y: FOOT + 30, "text-anchor": "middle" }, of.x));
  return svg;
}

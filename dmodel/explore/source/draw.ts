/** Bars and lines as SVG; all text is set as text, never as HTML. */

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

export interface Row { name: string; value: number; text: string }

/** A bar for each row, about zero; the same as a table for those who do not see it. */
export function bars(rows: Row[], most: number, label: string): HTMLElement {
  const table = element("table", "", "bars");
  table.append(element("caption", label));
  const negative = rows.some((row) => row.value < 0);
  for (const row of rows) {
    const line = element("tr"), cell = element("td", "", "bar");
    const head = element("th", row.name);
    head.setAttribute("scope", "row");
    const width = (100 * Math.abs(row.value)) / most / (negative ? 2 : 1);
    const svg = node("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" });
    const x = negative ? (row.value < 0 ? 50 - width : 50) : 0;
    svg.append(node("rect", { x, y: 1, width: Math.max(width, 0.2), height: 8,
      class: row.value < 0 ? "minus" : "plus" }));
    cell.append(svg);
    line.append(head, cell, element("td", row.text, "number"));
    table.append(line);
  }
  return table;
}

export interface Curve {
  points: [number, number][]; here: [number, number]; slope: number | null;
  x: string; y: string;
}

/** A curve over a logarithmic axis, with the point where the page stands and its tangent. */
export function curve(of: Curve): SVGElement {
  const xs = of.points.map(([x]) => Math.log(x)), ys = of.points.map(([, y]) => y);
  const [left, right] = [Math.min(...xs), Math.max(...xs)], top = 1.1 * Math.max(...ys, of.here[1]);
  const px = (x: number) => 46 + (244 * (x - left)) / (right - left || 1);
  const py = (y: number) => 150 - (140 * y) / top;
  const svg = node("svg", { viewBox: "0 0 300 180", role: "img", class: "curve" });
  svg.append(node("title", {}, `${of.y} over ${of.x}`));
  svg.append(node("path", { d: "M46 10V150H290", class: "axis" }));
  const line = of.points.map(([x, y], i) => `${i ? "L" : "M"}${px(Math.log(x))} ${py(y)}`);
  svg.append(node("path", { d: line.join(""), class: "line" }));
  const here = Math.log(of.here[0]);
  if (of.slope !== null) {
    const ends = [here - 0.35, here + 0.35].map((x) => Math.min(Math.max(x, left), right));
    const [a, b] = ends.map((x) => `${px(x)} ${py(of.here[1] + of.slope! * (x - here))}`);
    svg.append(node("path", { d: `M${a}L${b}`, class: "tangent" }));
  }
  svg.append(node("circle", { cx: px(here), cy: py(of.here[1]), r: 3.5, class: "here" }));
  const show = (value: number) => Number(value.toPrecision(3)).toLocaleString("en");
  svg.append(node("text", { x: 42, y: 20, "text-anchor": "end" }, show(top / 1.1)));
  svg.append(node("text", { x: 42, y: 150, "text-anchor": "end" }, "0"));
  svg.append(node("text", { x: 46, y: 163 }, show(Math.exp(left))));
  svg.append(node("text", { x: 290, y: 163, "text-anchor": "end" }, show(Math.exp(right))));
  svg.append(node("text", { x: 168, y: 176, "text-anchor": "middle" }, of.x));
  return svg;
}

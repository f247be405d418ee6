/** Where data movement ends training: a run beside the frontier of a GPU (dmodel/explore/limits.py). */

import type { Answer } from "./answer";
import type { Catalog, Table } from "./catalog";
import { type Curve, curve, element, type Piece } from "./draw";
import type { Program, Programs } from "./programs";
import { DAY, percent, short } from "./words";

/** Compute of a run [FLOP], its GPUs, utilization and time [s]. */
type Row = [number, number, number, number];
/** `layouts`: for each row the width of its models, and numbers of its layout. */
interface Sweep { rows: Row[]; layouts: number[][]; linear_end: Row | null; largest: Row | null }
/** `numbers`, `usual`: what the program of a point reads of a GPU and of a layout, by its inputs;
 * `layout`: inputs of what `layouts` have. */
export interface Limits {
  generations: Table<string>; gpus: Table<{ dense: Sweep; sparse: Sweep }>;
  numbers: Table<Table<number>>; usual: Table<number>; layout: string[]; deadline_s: number;
}

const MONTH = 365.25 * DAY / 12;
const power = (flop: number) => flop.toExponential(1).replace("e+", " · 10^");

/** Compute of the run of an answer [FLOP], which its utilization is of. */
export function computeOf(found: Answer, tokens: number): number {
  const { values, case: of } = found;
  const seconds = tokens / values["outputs.tokens_per_s"];
  const layout = of.plan.layout as Table<number>, devices = layout.dp * layout.tp * layout.pp * layout.cp;
  return values["outputs.mfu"] * of.cluster.chip.flops_per_s * devices * seconds;
}

/** Kind of the models of a run, as the sweep has them. */
const kindOf = (found: Answer) =>
  (found.built.model.feeds.some((feed) => feed.n_experts > 1) ? "sparse" : "dense");

/** A point beside the frontier: models of a width, laid out as those of the two nearest widths of the
 * sweep, on the smaller cluster that trains them in time. */
function pointAt(limits: Limits, gpu: string, sweep: Sweep, width: number, program: Program): Row {
  const above = Math.max(sweep.layouts.findIndex(([w]) => w >= width), 0);
  const tried = [above - 1, above].filter((i) => i >= 0).map((i) => {
    const [, ...numbers] = sweep.layouts[i];
    const given: Table<number> = { ...limits.numbers[gpu], ...limits.usual, width };
    limits.layout.forEach((path, k) => { given[path] = numbers[k]; });
    const x = Float64Array.from(program.inputs, (path) => given[path] ?? Infinity);
    const y = new Float64Array(program.outputs.length);
    program.run[0](x, y);
    const of = (name: string) => y[program.outputs.indexOf(name)];
    return [of("flop"), of("gpus"), of("utilization"), of("seconds")] as Row;
  });
  const inTime = tried.filter((row) => row[3] < limits.deadline_s).sort((a, b) => a[1] - b[1]);
  return inTime[0] ?? tried.sort((a, b) => a[3] - b[3])[0];
}

/** The frontier as a chart, with the run and a point whose width a slider picks from 0 to 1. */
export function frontier(
  limits: Limits, programsOf: (name: string) => Programs, catalog: Catalog, found: Answer,
  accelerator: string, tokens: number, picked: number,
): Piece[] {
  const gpu = limits.generations[catalog.generation(accelerator)];
  if (!gpu) return [element("p", "The study has no GPU of this chip's generation.", "note")];
  const kind = kindOf(found), sweep = limits.gpus[gpu][kind];
  const { rows, layouts, linear_end: end, largest } = sweep;
  const [[least], [most]] = [layouts[0], layouts[layouts.length - 1]];
  const width = least * (most / least) ** picked;
  const [flop, gpus, utilization, seconds] =
    pointAt(limits, gpu, sweep, width, programsOf(`limits ${kind}`).evaluated);
  const compute = tokens ? computeOf(found, tokens) : null, mfu = found.values["outputs.mfu"];
  const drawn: Curve = {
    points: rows.map(([x, , y]) => [x, 100 * y]), here: [flop, 100 * utilization], slope: null, pinned: [],
    x: "compute of the run [FLOP]", y: "utilization [%]",
    others: compute ? [{ x: compute, y: 100 * mfu, title: "this run, as predicted" }] : [],
    power: true,
  };
  const late = seconds < limits.deadline_s ? "" : ", beyond three months";
  const texts = [
    `The line: utilization of the smallest cluster of ${gpu} that trains a ${kind} model within ` +
      "three months, by its compute (Erdil and Schneider-Joseph 2024, arXiv 2411.01137), as " +
      "dmodel theory --sweep computes it for whole numbers.",
    `The dot, evaluated here: width ${short(width)}, ${power(flop)} FLOP on ${short(gpus)} GPUs at ` +
      `${percent(utilization)}, ${short(seconds / MONTH)} months${late}; layers and batch by the ` +
      "study's laws, not rounded, in the layout of the nearest width of the line.",
  ];
  if (compute) texts.push(`The ring: this run, ${power(compute)} FLOP at ${percent(mfu)}.`);
  if (end) texts.push(`Linear scaling ends at ${power(end[0])} FLOP on ${short(end[1])} GPUs.`);
  if (largest) texts.push(`The largest run of three months: ${power(largest[0])} FLOP.`);
  return [curve(drawn), ...texts.map((text) => element("p", text, "note"))];
}

/** Where data movement ends training: a run beside the frontier of a GPU (dmodel/explore/limits.py). */

import type { Answer } from "./answer";
import type { Catalog, Table } from "./catalog";
import { type Curve, curve, element, type Piece } from "./draw";
import { DAY, percent, short } from "./words";

/** Compute of a run [FLOP], its GPUs, utilization and time [s]. */
type Row = [number, number, number, number];
interface Sweep { rows: Row[]; linear_end: Row | null; largest: Row | null }
export interface Limits { generations: Table<string>; gpus: Table<{ dense: Sweep; sparse: Sweep }> }

const MONTH = 365.25 * DAY / 12;
const power = (flop: number) => flop.toExponential(1).replace("e+", " · 10^");

/** Compute of the run of an answer [FLOP], which its utilization is of. */
export function computeOf(found: Answer, tokens: number): number {
  const { values, case: of } = found;
  const seconds = tokens / values["outputs.tokens_per_s"];
  const layout = of.plan.layout as Table<number>, devices = layout.dp * layout.tp * layout.pp * layout.cp;
  return values["outputs.mfu"] * of.cluster.chip.flops_per_s * devices * seconds;
}

/** The frontier as a chart, with the run and the width that a slider picks. */
export function frontier(
  limits: Limits, catalog: Catalog, found: Answer, accelerator: string, tokens: number, picked: number,
): Piece[] {
  const gpu = limits.generations[catalog.generation(accelerator)];
  if (!gpu) return [element("p", "The study has no GPU of this chip's generation.", "note")];
  const experts = found.built.model.feeds.some((feed) => feed.n_experts > 1);
  const { rows, linear_end: end, largest } = limits.gpus[gpu][experts ? "sparse" : "dense"];
  const [flop, gpus, utilization, seconds] = rows[Math.min(Math.round(picked * (rows.length - 1)), rows.length - 1)];
  const compute = tokens ? computeOf(found, tokens) : null, mfu = found.values["outputs.mfu"];
  const drawn: Curve = {
    points: rows.map(([x, , y]) => [x, 100 * y]), here: [flop, 100 * utilization], slope: null, pinned: [],
    x: "compute of the run [FLOP]", y: "utilization [%]",
    others: compute ? [{ x: compute, y: 100 * mfu, title: "this run, as predicted" }] : [],
    power: true,
  };
  const texts = [
    `Utilization of the smallest cluster of ${gpu} that trains ${experts ? "a sparse" : "a dense"} model within ` +
      "three months, by its compute (Erdil and Schneider-Joseph 2024, arXiv 2411.01137; dmodel theory --sweep).",
    `The dot: ${power(flop)} FLOP on ${short(gpus)} GPUs at ${percent(utilization)}, ${short(seconds / MONTH)} months.`,
  ];
  if (compute) texts.push(`The ring: this run, ${power(compute)} FLOP at ${percent(mfu)}.`);
  if (end) texts.push(`Linear scaling ends at ${power(end[0])} FLOP on ${short(end[1])} GPUs.`);
  if (largest) texts.push(`The largest run of three months: ${power(largest[0])} FLOP.`);
  return [curve(drawn), ...texts.map((text) => element("p", text, "note"))];
}

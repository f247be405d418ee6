/** What was measured: by the user, and by others (calibration/traces/neighbours.py). */

import type { Catalog, Table } from "./catalog";
import { usualPrecision } from "./machine";

/** Rows column by column: words of a column once, and their places. */
export interface Published {
  sizes: Table<number>; words: Table<number>; blank: number; ones: string[];
  numbers: Table<(number | null)[]>; texts: Table<{ words: string[]; at: number[] }>;
}
export interface Neighbour {
  distance: number; model: string; accelerator: string; stack: string; devices: number;
  layout: string; seconds: number; rate: number; mfu: number | null; source: string; url: string;
  license: string; numbers: Table<number | null>;
}

const SHOWN = ["tp", "cp", "ep", "pp", "dp", "interleave", "micro_batch", "global_batch"];

type Columns = Table<number | string | undefined>;

/** The published rows nearest to a run on chips of one generation, at most one of a configuration. */
export function neighbours(of: Published, catalog: Catalog, columns: Columns, count: number): Neighbour[] {
  const chip = catalog.known("chips", String(columns.accelerator ?? ""));
  if (chip === undefined) return [];
  const generation = catalog.generation(chip), found: Neighbour[] = [];
  const text = (name: string, i: number) => of.texts[name].words[of.texts[name].at[i]];
  const size = (name: string, value: unknown) =>
    value === null || value === undefined || value === "" ? (of.ones.includes(name) ? 1 : null) : Math.max(Number(value), 1e-9);
  const word = (name: string, value: unknown) => {
    const low = String(value ?? "").toLowerCase();
    if (name === "stack") return low ? catalog.stack(low).basis : "";
    if (name === "accelerator") return catalog.known("chips", low) ?? low;
    return low || (name === "precision" ? usualPrecision(catalog, chip) : "");
  };
  const own = Object.keys(of.words).map((name) => word(name, columns[name]));
  const apart = (i: number): number => {
    let total = 0;
    for (const [name, weight] of Object.entries(of.sizes)) {
      const one = size(name, columns[name]), other = size(name, of.numbers[name][i]);
      total = Math.hypot(total, weight * (one === null || other === null ? of.blank : Math.log(one / other)));
    }
    Object.entries(of.words).forEach(([name, weight], k) => {
      if (own[k] !== word(name, text(name, i))) total = Math.hypot(total, weight);
    });
    return total;
  };
  const pairs: [number, number][] = [];
  for (let i = 0; i < of.texts.model.at.length; i++) {
    const name = catalog.known("chips", text("accelerator", i));
    if (name !== undefined && catalog.generation(name) === generation) pairs.push([apart(i), i]);
  }
  pairs.sort((a, b) => a[0] - b[0]);
  const seen = new Set<string>();
  for (const [distance, i] of pairs) {
    const numbers = Object.fromEntries(Object.entries(of.numbers).map(([name, all]) => [name, all[i]]));
    const parts = SHOWN.filter((n) => numbers[n] !== null && numbers[n] !== 1).map((n) => `${n} ${numbers[n]}`);
    const again = text("recompute", i);
    const layout = [...parts, ...(again ? [`recompute ${again}`] : [])].join(" · ");
    const key = [text("source", i), layout, text("model", i), numbers.n_accel].join("\n");
    if (seen.has(key)) continue;
    seen.add(key);
    const seconds = numbers.step_time_s!, devices = numbers.n_accel!;
    found.push({
      distance, model: text("model", i), accelerator: text("accelerator", i), stack: text("stack", i),
      devices, layout, seconds, rate: (numbers.global_batch! * numbers.seq_len!) / seconds / devices,
      mfu: numbers.mfu_reported, source: text("source", i), url: text("url", i),
      license: text("license", i), numbers,
    });
    if (found.length === count) break;
  }
  return found;
}

/** The step time that a measurement means, in seconds. */
export function measuredTime(value: number, unit: string, tokens: number, devices: number,
  seconds: number, mfu: number): number {
  if (unit === "rate") return tokens / devices / value;
  return unit === "mfu" ? (seconds * mfu) / (value / 100) : value;
}

/** What a layout does again, as rows say it. */
export function again(of: Table<number>): string {
  const { recompute_layers: layers, recompute_attention: core } = of;
  if (of.recompute_elementwise) return "selective";
  if (layers === 0 && (of.recompute_products || of.recompute_bytes)) return "parts of a layer";
  if (layers === 0 && core <= 1 && Number.isInteger(core)) return core ? "selective" : "none";
  return layers === 1 && core === 0 ? "full" : `${layers.toFixed(2)} of the layers`;
}

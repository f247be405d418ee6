/** How far an answer may be off (dmodel/uncertainty.py): sigma points of the coefficients. */

import type { Catalog, Table } from "./catalog";
import { type Built, ffWidth, own, value } from "./models";
import { members, type Profile } from "./profile";
import { type Case, inputs, type Program } from "./programs";

/** What a page is given of a profile's covariances, packed. */
export interface Intervals {
  names: string[]; correlations: string; deviations: string; places: string; steps: Table<number>;
  widths: Table<number[]>; scatter: Table<number[]>; stranger: number[]; strangers: Table<number>;
  newMaker: number; makers: Table<string>; oneCodeBase: boolean; reach: number;
  otherVariant: number; quantile: number; level: number; side: number;
}
/** The same unpacked: places by stack, `[feature, row]`. */
export interface Known {
  said: Intervals; correlations: Int8Array; deviations: number[][]; places: Table<number[][]>;
}
type Matrix = number[][];
/** Ends of the interval of an output. */
export interface Ends { low: number; high: number }

export class Doubt {
  private readonly found = new Map<string, [Float64Array, Float64Array][]>();
  private readonly coefficients = new WeakMap<Program, number[]>();

  constructor(
    private readonly catalog: Catalog, private readonly profile: Profile, private readonly known: Known,
  ) {}

  private matrix(place: number): Matrix {
    const { said, correlations, deviations } = this.known, n = deviations.length;
    const count = said.names.length, { correlation, deviation } = said.steps;
    const scale = deviations.map((row) => Math.exp(row[place] / deviation));
    const of = scale.map((s) => scale.map(() => s * 0));
    for (let i = 0, k = 0; i < n; i++) {
      of[i][i] = scale[i] ** 2;
      for (let j = 0; j < i; j++, k++)
        of[i][j] = of[j][i] = (correlations[k * count + place] / correlation) * scale[i] * scale[j];
    }
    return of;
  }

  private covariance(chip: string, stack: string, family: string): Matrix {
    const { names, widths, strangers, newMaker } = this.known.said;
    const pair = names.indexOf(`pair ${chip} ${stack}`);
    if (pair >= 0) return this.matrix(pair);
    const alike = names.indexOf(`stack ${family}`);
    const found = this.matrix(alike >= 0 ? alike : names.indexOf(""));
    const strange = this.ofNewMaker(chip, family);
    for (const group of this.unknown(chip, stack)) {
      if (!(group in widths)) continue;
      const factor = strange.includes(group) ? newMaker : (strangers[group] ?? 1);
      widths[group].forEach((width, i) => { found[i][i] += (width * factor) ** 2; });
    }
    return found;
  }

  /** Groups of whose members the profile does not know those of a chip and a stack. */
  private unknown(chip: string, stack: string): string[] {
    const named = members(this.catalog, chip || "?", stack || "?");
    const found = Object.entries(named).filter(([group, member]) =>
      member && !(member in (this.profile.offsets[group] ?? {}))).map(([group]) => group);
    return !stack && this.known.said.oneCodeBase ? found.filter((g) => g !== "lineage") : found;
  }

  private ofNewMaker(chip: string, family: string): string[] {
    const { makers } = this.known.said, { offsets } = this.profile;
    const all = new Set(Object.keys(offsets.accelerator).map((name) => makers[name]).filter(Boolean));
    if (!chip || !all.size) return [];
    const mine = this.catalog.data.chips[chip]?.maker ?? "";
    if (!all.has(mine)) return ["generation", "accelerator", "port", "pair"];
    const ports = Object.keys(offsets.port).map((name) => {
      const at = name.lastIndexOf(" ");
      return [name.slice(0, at), name.slice(at + 1)];
    });
    const on = new Set(ports.filter(([, name]) => name === family).map(([of]) => makers[of]).filter(Boolean));
    return on.size && !on.has(mine) ? ["port", "pair"] : [];
  }

  /** What the sigma points of a chip and stack multiply coefficients, or odds of shares, by: one above
   * and one below, by direction; kept. */
  private factors(chip: string, stack: string, family: string): [Float64Array, Float64Array][] {
    const key = `${chip}\n${stack}`;
    if (!this.found.has(key)) {
      const steps = directions(this.covariance(chip, stack, family));
      this.found.set(key, steps.map((step) =>
        [Float64Array.from(step, Math.exp), Float64Array.from(step, (x) => Math.exp(-x))]));
    }
    return this.found.get(key)!;
  }

  /** Where a program reads the coefficients; kept. */
  private placesIn(program: Program): number[] {
    let found = this.coefficients.get(program);
    if (!found) {
      found = this.profile.names.map((n) => program.inputs.indexOf(`case.coefficients.${n}`));
      this.coefficients.set(program, found);
    }
    return found;
  }

  /** Ends of the intervals of some outputs, which the program gives for the case. */
  ends(of: {
    case: Case; spread: number; built: Built; accelerator: string; stack: string;
  }, program: Program, names: string[]): Table<Ends> {
    const chip = this.catalog.knownAs(of.accelerator), named = of.stack ? this.catalog.stack(of.stack) : null;
    const family = named ? named.basis : "";
    const stack = named && named.variant ? `${family}/${named.variant}` : family;
    const x = inputs(program, of), y = new Float64Array(program.outputs.length);
    const places = this.placesIn(program);
    const outputs = names.map((name) => program.outputs.indexOf(`outputs.${name}`));
    const { names: coefficients, shares } = this.profile;
    const middle = coefficients.map((name, i) => {
      const v = of.case.coefficients[name];
      return shares[i] ? v / (1 - v) : v;
    });
    const at = (factors: Float64Array | null): number[] => {
      for (let i = 0; i < middle.length; i++) {
        const moved = factors ? middle[i] * factors[i] : middle[i];
        x[places[i]] = shares[i] ? moved / (1 + moved) : moved;
      }
      program.run[0](x, y);
      return outputs.map((k) => y[k]);
    };
    const here = at(null), variance = names.map(() => 0);
    for (const [above, below] of this.factors(chip, stack, family)) {
      const up = at(above), down = at(below);
      names.forEach((_, k) => {
        const a = Math.log(up[k] / here[k]), b = Math.log(down[k] / here[k]);
        variance[k] += (a * a + b * b) / 6 - ((a + b) / 6) ** 2;
      });
    }
    const rest = this.misfit(of.case, of.built, family, stack), { quantile } = this.known.said;
    return Object.fromEntries(names.map((name, k) => {
      const factor = Math.exp(quantile * Math.sqrt(variance[k] + rest * rest));
      return [name, { low: here[k] / factor, high: here[k] * factor }];
    }));
  }

  /** Scale of what is not the coefficients' doing. */
  private misfit(of: Case, built: Built, family: string, stack: string): number {
    const { scatter, stranger, reach } = this.known.said;
    const [noise, discrepancy] = scatter[family] ?? scatter[""] ?? stranger;
    const far = this.distance(features(of, built), family, stack);
    return Math.sqrt(noise ** 2 + discrepancy ** 2 * -Math.expm1(-0.5 * (far / reach) ** 2));
  }

  /** Distance of a run to the nearest that the profile was fitted to. */
  private distance(place: number[], family: string, stack: string): number {
    const { places, said } = this.known;
    let least = Infinity;
    for (const [name, rows] of Object.entries(places)) {
      const of = this.catalog.stack(name);
      if (!family || of.basis !== family) continue;
      const other = (of.variant ? `${of.basis}/${of.variant}` : of.basis) === stack ? 0 : said.otherVariant ** 2;
      for (let i = 0; i < rows[0].length; i++) {
        let squared = other;
        for (let k = 0; k < place.length; k++) squared += (place[k] - rows[k][i] / said.steps.place) ** 2;
        if (squared < least) least = squared;
      }
    }
    return Math.sqrt(least);
  }
}

/** Place of a run among others. */
function features(of: Case, built: Built): number[] {
  const { model, cluster } = of, layout = of.plan.layout as Table<number>;
  const precision = of.plan.precision as Table<number>;
  const log = (x: number) => Math.log(Math.max(x, 1e-9));
  return [
    log(own(model, "d_model")), 0.5 * log(ffWidth(built)), log(own(model, "n_layers")),
    log(own(model, "seq_len")), 0.5 * log(value(built, "n_experts", 1) + 1), own(model, "trainable"),
    log(layout.micro_batch), 0.5 * log(of.plan.global_batch), log(layout.dp), log(layout.tp),
    log(layout.pp), log(layout.cp), log(layout.ep), 0.5 * layout.zero, 0.5 * layout.sp,
    layout.recompute_layers + (1 - layout.recompute_layers) * layout.recompute_products,
    0.5 * layout.recompute_attention, log(precision.operand_bytes),
    log(cluster.chip.attention_flops_per_s),
  ];
}

/** √3 standard deviations along directions whose squares sum to a covariance; each mixes all
 * principal axes. */
function directions(of: Matrix): number[][] {
  const n = of.length, [values, axes] = eigen(of);
  const found: number[][] = [];
  for (let j = 0; j < n; j++) {
    const step = new Array(n).fill(0);
    for (let k = 0; k < n; k++) {
      let mixed = Math.cos((Math.PI * (k + 0.5) * j) / n) * Math.sqrt(2 / n);
      if (j === 0) mixed /= Math.SQRT2;
      const scale = Math.sqrt(3 * Math.max(values[k], 0)) * mixed;
      for (let i = 0; i < n; i++) step[i] += axes[i][k] * scale;
    }
    found.push(step);
  }
  return found;
}

const SWEEPS = 30;

/** Eigenvalues, ascending, and eigenvectors, in columns, of a symmetric matrix: rotations of
 * Jacobi. */
export function eigen(of: Matrix): [number[], Matrix] {
  const n = of.length, a = of.map((row) => [...row]);
  const v: Matrix = a.map((_, i) => a.map((_, j) => Number(i === j)));
  for (let sweep = 0; sweep < SWEEPS; sweep++) {
    let off = 0;
    for (let i = 0; i < n; i++) for (let j = 0; j < i; j++) off += a[i][j] ** 2;
    if (off < 1e-24) break;
    for (let p = 0; p < n; p++) for (let q = p + 1; q < n; q++) rotate(a, v, p, q);
  }
  const order = a.map((_, i) => i).sort((i, j) => a[i][i] - a[j][j]);
  return [order.map((i) => a[i][i]), v.map((row) => order.map((i) => row[i]))];
}

function rotate(a: Matrix, v: Matrix, p: number, q: number): void {
  if (Math.abs(a[p][q]) < 1e-300) return;
  const theta = (a[q][q] - a[p][p]) / (2 * a[p][q]);
  const t = (theta < 0 ? -1 : 1) / (Math.abs(theta) + Math.sqrt(theta * theta + 1));
  const c = 1 / Math.sqrt(t * t + 1), s = t * c;
  for (let k = 0; k < a.length; k++) {
    const [x, y] = [a[k][p], a[k][q]];
    [a[k][p], a[k][q]] = [c * x - s * y, s * x + c * y];
  }
  for (let k = 0; k < a.length; k++) {
    const [x, y] = [a[p][k], a[q][k]];
    [a[p][k], a[q][k]] = [c * x - s * y, s * x + c * y];
    const [m, o] = [v[k][p], v[k][q]];
    [v[k][p], v[k][q]] = [c * m - s * o, s * m + c * o];
  }
}

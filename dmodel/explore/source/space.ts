/** All valid integer plans of a device count (dmodel/design/space.py). */

import type { Rules, Searching, Table } from "./catalog";
import type { Job } from "./job";
import { allows, held, shortBy } from "./layouts";
import { type Built, own, value } from "./models";

export interface Degrees { dp: number; tp: number; cp: number; pp: number; ep: number }
/** Schedule, chunks of a stage, micro-batch. */
export type Run = [string, number, number];
/** What may be chosen with some degrees. */
export interface Options {
  runs: Run[]; recompute: [number, number][]; sharding: [number, number, number][];
  sp: number[];
}
export interface Choices {
  zero: number[]; schedules: string[]; degrees: string[]; uneven: boolean;
}
type Counted = (built: Built, mark: "split" | "copied") => number[];

const known = new Map<number, number[]>();

export function divisors(n: number): number[] {
  if (!known.has(n)) {
    const small: number[] = [];
    for (let d = 1; d * d <= n; d++) if (n % d === 0) small.push(d);
    const large = small.filter((d) => d * d < n).map((d) => n / d).reverse();
    known.set(n, [...small, ...large]);
  }
  return known.get(n)!;
}

const product = (numbers: number[]) => numbers.reduce((a, b) => a * b, 1);

export class Space {
  private readonly layers: number;
  private readonly length: number;
  private readonly experts: number;
  private readonly stagesOf = new Map<number, [number, number[]]>();

  constructor(
    private readonly built: Built, private readonly job: Job, readonly devices: number,
    readonly batch: number, private readonly sizes: number[], private readonly choices: Choices,
    private readonly usual: Searching, private readonly flash: boolean,
    private readonly placement: string[], private readonly rules: Table<Rules>, counted: Counted,
  ) {
    this.layers = own(built.model, "n_layers");
    this.length = own(built.model, "seq_len");
    this.experts = Math.trunc(value(built, "n_experts", 1));
    const [split, copied] = [counted(built, "split"), counted(built, "copied")];
    this.heads = (tp) => split.every((n) => n % tp === 0) && copied.every((n) => n % tp === 0 || tp % n === 0);
  }

  private readonly heads: (tp: number) => boolean;

  get layerCount(): number {
    return this.layers;
  }

  get sequence(): number {
    return this.length;
  }

  /** All valid splits of the devices. */
  degrees(): Degrees[] {
    const found: Degrees[] = [];
    for (const tp of divisors(this.devices)) {
      if (!this.has("tp", tp) || !this.heads(tp) || !this.sp(tp, 1).length) continue;
      for (const cp of divisors(this.devices / tp)) {
        if (!this.has("cp", cp)) continue;
        if (this.length % cp || !this.sp(tp, cp).length) continue;
        for (const pp of divisors(this.devices / (tp * cp))) {
          const dp = this.devices / (tp * cp * pp);
          if (!this.has("pp", pp) || !this.stages(pp)[1].includes(1) || this.batch % dp) continue;
          if (!this.runs(dp, pp).length) continue;
          for (const ep of divisors(this.experts))
            if (this.has("ep", ep) && (dp * tp * cp) % ep === 0) found.push({ dp, tp, cp, pp, ep });
        }
      }
    }
    return found;
  }

  /** Whether the stack has a degree, or is not asked for it. */
  private has(name: string, degree: number): boolean {
    return degree === 1 || this.choices.degrees.includes(name);
  }

  private sp(tp: number, cp: number): number[] {
    if (tp === 1) return [0];
    const splits = this.length % (tp * cp) === 0;
    const allowed = this.experts > 1 ? [1] : [...this.usual.sp].sort((a, b) => b - a);
    return allowed.filter((x) => splits || !x);
  }

  options(split: Degrees): Options {
    const [perStage] = this.stages(split.pp);
    return {
      runs: this.runs(split.dp, split.pp), recompute: this.recompute(perStage),
      sharding: this.sharding(split), sp: this.spTaken(split),
    };
  }

  private stages(pp: number): [number, number[]] {
    if (!this.stagesOf.has(pp)) {
      const { layers } = this;
      const most = Math.trunc(held({ layers, pp, interleave: 1, further: 0 })[0]);
      const chunks = Array.from({ length: most }, (_, i) => i + 1);
      const even = (v: number) => this.choices.uneven || layers % (pp * v) === 0;
      this.stagesOf.set(pp, [most, chunks.filter((v) => shortBy(layers, pp, v) === 0 && even(v))]);
    }
    return this.stagesOf.get(pp)!;
  }

  private spTaken(split: Degrees): number[] {
    const offered = this.sp(split.tp, split.cp);
    if (!this.job.changesMeanings) return offered;
    const layout = { ...split, etp: 1, zero: 0, shard: 1 };
    return [...new Set(offered.map((sp) => Math.trunc(this.job.meant({ ...layout, sp }).sp)))];
  }

  private runs(dp: number, pp: number): Run[] {
    const share = this.batch / dp, { schedules } = this.choices, chunks = this.stages(pp)[1];
    const batches = divisors(share).filter((b) => Number.isInteger(Math.log2(b)));
    if (pp === 1) return batches.map((b) => ["1f1b", 1, b]);
    const found: Run[] = [];
    for (const name of schedules) {
      const rules = this.rules[name];
      if (chunks.includes(rules.chunks))
        for (const b of batches) if (allows(rules, pp, share / b)) found.push([name, rules.chunks, b]);
    }
    if (!schedules.includes("interleaved")) return found;
    for (const v of schedules.includes("1f1b") ? chunks.slice(1) : chunks)
      for (const b of batches) if (v === 1 || (share / b) % pp === 0) found.push(["interleaved", v, b]);
    return found;
  }

  private recompute(perStage: number): [number, number][] {
    const rounded = this.usual.recompute.map((r) => even(r * perStage));
    const shares = [...new Set(rounded)].sort((a, b) => a - b);
    const found = shares.map((k) => [k / perStage, 0] as [number, number]);
    return this.flash ? found : [...found.slice(0, 1), [0, 1], ...found.slice(1)];
  }

  private sharding(split: Degrees): [number, number, number][] {
    const offered = this.offered(split);
    if (!this.job.changesMeanings) return offered;
    const found = new Map<string, [number, number, number]>();
    for (const [zero, shard, reshard] of offered) {
      const taken = this.job.meant({ ...split, etp: 1, sp: 0, zero, shard });
      const stage = Math.trunc(taken.zero);
      const each: [number, number, number] = [stage, Math.trunc(taken.shard), stage === 3 ? reshard : 1];
      found.set(each.join(), each);
    }
    return [...found.values()];
  }

  private offered(split: Degrees): [number, number, number][] {
    const { zero } = this.choices;
    if (split.dp * split.cp === 1) {
      const found: [number, number, number][] = zero.includes(0) ? [[0, 1, 1]] : [];
      if (zero.includes(1) && this.job.tellsApart("zero", 0, 1)) found.push([1, 1, 1]);
      return found.length ? found : [[0, 1, 1]];
    }
    const every: [number, number, number][] = [[0, 1, 1]];
    for (const stage of [1, 2]) every.push([stage, split.dp, 1]);
    for (const shard of [split.dp, ...this.shards(split)])
      for (const reshard of [1, 0]) every.push([3, shard, reshard]);
    return every.filter(([stage]) => zero.includes(stage));
  }

  /** Sharding groups below dp that fill a domain of the network. */
  private shards(split: Degrees): number[] {
    const order = this.placement;
    const inside = order.slice(0, order.indexOf("dp")).filter((name) => name !== "ep");
    const stride = product(inside.map((name) => (split as unknown as Table<number>)[name]));
    const sizes = this.sizes.filter((size) => size % stride === 0).map((size) => size / stride);
    return divisors(split.dp).slice(1, -1).filter((s) =>
      sizes.includes(s) && (s * split.cp * split.tp) % split.ep === 0);
  }
}

/** The nearest whole number, of two the even one, as numpy rounds. */
function even(x: number): number {
  const found = Math.round(x);
  return found - x === 0.5 && found % 2 !== 0 ? found - 1 : found;
}

/** The best plans of a job, of all valid ones (dmodel/searching.py, dmodel/design). */

import type { Model } from "./answer";
import { InputError, type Table } from "./catalog";
import { Job, type Layout } from "./job";
import { type Built, parts, structure } from "./models";
import { type Case, inputs } from "./programs";
import { Question } from "./resolve";
import { type Choices, Space } from "./space";

/** A plan of a search: its numbers by name, and what the model says of it. */
export interface Found {
  layout: Layout; schedule: string; seconds: number; bytes: number; mfu: number; risk: number;
}
export interface Result {
  plans: Found[]; considered: number; feasible: number; closest: Found | null; share: number;
  /** Schedules that the page cannot ask for: plans with pipelines that run so are left out. */
  left: string[];
}
const USUAL = ["1f1b", "interleaved"];
/** Numbers of a layout that a search chooses, or that follow from what it chooses. */
const CHOSEN = [
  "dp", "tp", "cp", "pp", "ep", "etp", "sp", "interleave", "micro_batch", "zero", "shard", "reshard",
  "recompute_layers", "recompute_attention", "stage_excess", "head_displaces",
];
export type Tell = (done: number, total: number) => void;

interface Program {
  x: Float64Array; y: Float64Array; run: () => void; at: (leaf: string) => number;
  out: (name: string) => number;
}

/** Finds the best plans of jobs by a model. */
export class Search {
  constructor(private readonly model: Model) {}

  /** The `top` plans of least step time whose memory fits at the usual risk. Columns and settings of
   * the layout are left to the search. */
  best(asked: Question, top: number, tell: Tell = () => {}): Result {
    const { catalog } = this.model, { search } = catalog.data;
    const open = Object.entries(asked.columns).filter(([name]) => !search.open.includes(name));
    const job = new Question(Object.fromEntries(open), asked.settings, asked.system);
    const alone = job.having({ global_batch: job.need("n_accel") });
    const { found, whole } = this.model.records(alone, true);
    const own = this.model.resolver.completed(job), of = new Job(this.model.resolver, own);
    const base = this.base(whole.case);
    const sizes: number[] = [];
    base.cluster.network.size.reduce((all, size) => (sizes.push(all * size), all * size), 1);
    const devices = job.need("n_accel"), batch = job.need("global_batch");
    if (devices > sizes[sizes.length - 1])
      throw new InputError(`the network has ${sizes[sizes.length - 1]} devices; got ${devices}`);
    const plan = base.plan as unknown as Table<Table<number>>;
    const offered = this.choices(of, own), known = [...USUAL, of.schedule()];
    const left = offered.schedules.filter((name) => !known.includes(name));
    const searched = { ...offered, schedules: offered.schedules.filter((name) => !left.includes(name)) };
    const space = new Space(
      found.built, of, devices, batch, sizes.filter(Number.isFinite),
      searched, search, Boolean(plan.software.flash), ["tp", "cp", "ep", "dp", "pp"],
      catalog.data.schedules, (built, mark) => this.counted(built, mark),
    );
    const batched = { ...base, plan: { ...base.plan, global_batch: batch } };
    const program = this.program(found.built, batched, whole.spread);
    const result = this.over(space, of, found.built, program, whole.spread, base.cluster.chip.hbm_bytes, top, tell);
    return { ...result, left };
  }

  private counted(built: Built, mark: "split" | "copied"): number[] {
    const { kinds } = this.model.catalog.data;
    const names = [...built.kinds.mixers, ...built.kinds.feeds];
    return parts(built).flatMap((part, i) => kinds[names[i]][mark].map((name) => part[name]));
  }

  /** What all plans share: nothing is done again, nor waits in host memory, unless said. */
  private base(of: Case): Case {
    const { search, neutral } = this.model.catalog.data;
    const layout: Layout = { ...(of.plan.layout as Layout), stage_excess: 0, head_displaces: 0 };
    const software = { ...(of.plan.software as Layout), last_kept: 0 };
    for (const name of search.neutral) layout[name] = neutral[name];
    return { ...of, plan: { ...of.plan, layout, software } };
  }

  private choices(job: Job, question: Question): Choices {
    const { search } = this.model.catalog.data;
    const runs = this.model.catalog.runs(question.text("stack"));
    const said = search.zero.filter((z) => (runs.zero ?? search.zero).includes(z));
    const devices = question.need("n_accel"), taken = new Set<number>();
    const one = [1, 2];
    for (const zero of said) for (const tp of one) for (const pp of one) for (const cp of one)
      for (const ep of one) for (const sp of [0, 1])
        taken.add(Math.trunc(job.meant({
          dp: devices, tp, pp, cp, ep, etp: 1, sp, zero, shard: zero ? devices : 1, interleave: 1,
          micro_batch: 1, replicas: zero ? 1 : devices,
        }).zero));
    const known = runs.schedules ?? search.schedules;
    const schedules = search.schedules.filter((name) => known.includes(name));
    return {
      zero: [...taken].sort((a, b) => a - b), schedules: schedules.length ? schedules : known,
      degrees: search.degrees.filter((name) => (runs.degrees ?? search.degrees).includes(name)),
      uneven: runs.uneven ?? search.uneven,
    };
  }

  private program(built: Built, base: Case, spread: number): Program {
    const { evaluated } = this.model.programsOf(structure(built, base.cluster.network.size.length));
    const x = inputs(evaluated, { case: base, spread });
    const y = new Float64Array(evaluated.outputs.length), { homes } = this.model.catalog.data;
    const place = new Map(evaluated.inputs.map((path, i) => [path, i]));
    return {
      x, y, run: () => evaluated.run[0](x, y),
      at: (leaf) => place.get(`case.plan.${homes[leaf]}.${leaf}`) ?? -1,
      out: (name) => evaluated.outputs.indexOf(name),
    };
  }

  private over(
    space: Space, job: Job, built: Built, program: Program, spread: number, room: number,
    top: number, tell: Tell,
  ): Omit<Result, "left"> {
    const { search, leaves, schedules, mixed } = this.model.catalog.data;
    const ofMix = Object.keys(mixed);
    const share = Math.exp(spread * search.deviations), { x, y } = program;
    const splits = space.degrees().map((split) => ({ split, of: space.options(split) }));
    const total = splits.reduce((sum, { of }) =>
      sum + of.runs.length * of.recompute.length * of.sharding.length * of.sp.length, 0);
    const ranks = new Ranks(top, search.plainness, search.digits, Object.keys(schedules));
    const [time, memory, mfu, risk] =
      ["outputs.step_time_s", "outputs.memory_bytes", "outputs.mfu", "oom_probability"].map(program.out);
    const decided = job.leaves.map((name) => [name, program.at(name)] as [string, number]);
    const place = Object.fromEntries([...CHOSEN, ...ofMix].map((name) => [name, program.at(name)]));
    const layers = place.recompute_layers, cores = place.recompute_attention;
    const lain = new Map<string, [number, number]>(), most = room * share;
    let considered = 0, feasible = 0, closest: Found | null = null, now = USUAL[0];
    const take = (): Found => ({
      layout: Object.fromEntries(CHOSEN.map((name) => [name, x[place[name]]])),
      schedule: now,
      seconds: y[time], bytes: y[memory], mfu: y[mfu], risk: y[risk],
    });
    const set = (layout: Layout) => {
      for (const name of CHOSEN) if (name in layout) x[place[name]] = layout[name];
    };
    const judge = () => {
      program.run();
      considered += 1;
      if (y[memory] <= most) {
        feasible += 1;
        ranks.add(y[time], take);
      } else if (!feasible && (closest === null || y[memory] < closest.bytes)) closest = take();
    };
    for (const { split, of } of splits) {
      const { dp, pp } = split;
      for (const [schedule, interleave, micro_batch] of of.runs) {
        const { fold } = schedules[schedule], key = `${pp} ${interleave} ${fold}`;
        if (!lain.has(key)) lain.set(key, job.stages(built, pp, interleave, fold));
        for (const name of ofMix) x[place[name]] = Number(mixed[name] === schedule);
        now = schedule;
        const [stage_excess, head_displaces] = lain.get(key)!;
        for (const sp of of.sp) for (const [zero, shard, reshard] of of.sharding) {
          const ranksOfShard = zero > 0 ? Math.max(shard, 1) : 1;
          const layout: Layout = { ...split, etp: 1, sp, zero, shard, interleave, micro_batch };
          set({ ...layout, reshard, stage_excess, head_displaces });
          if (decided.length) {
            const own = job.values({
              ...layout, shard: ranksOfShard, replicas: dp / ranksOfShard, devices: space.devices,
              stage_layers: space.layerCount / pp, seq_len: space.sequence,
            });
            for (const [name, at] of decided) x[at] = Number(own[name] ?? leaves[name]);
          }
          for (const [again, core] of of.recompute) {
            x[layers] = again;
            x[cores] = core;
            judge();
          }
        }
      }
      tell(considered, total);
    }
    return { plans: ranks.best, considered, feasible, closest: feasible ? null : closest, share };
  }
}

/** The best so far; merits equal to so many digits are ordered by plainness. */
class Ranks {
  readonly best: Found[] = [];
  private readonly keys: number[][] = [];

  constructor(
    private readonly top: number, private readonly plainness: string[],
    private readonly digits: number, private readonly schedules: string[],
  ) {}

  private rounded(merit: number): number {
    const scale = 10 ** (Math.floor(Math.log10(merit)) - this.digits + 1);
    return Math.round(merit / scale) * scale;
  }

  add(seconds: number, take: () => Found): void {
    const merit = this.rounded(seconds), last = this.keys[this.keys.length - 1];
    if (this.keys.length === this.top && merit > last[0]) return;
    const found = take(), key = [merit, ...this.plainness.map((name) => {
      if (name === "schedule") return this.schedules.indexOf(found.schedule);
      const value = found.layout[name.replace("-", "")] ?? 0;
      return name.startsWith("-") ? -value : value;
    })];
    let place = this.keys.length;
    while (place > 0 && before(key, this.keys[place - 1])) place -= 1;
    this.keys.splice(place, 0, key);
    this.best.splice(place, 0, found);
    this.keys.length = this.best.length = Math.min(this.keys.length, this.top);
  }
}

function before(a: number[], b: number[]): boolean {
  for (let i = 0; i < a.length; i++) if (a[i] !== b[i]) return a[i] < b[i];
  return false;
}

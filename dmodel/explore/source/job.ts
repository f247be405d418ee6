/** What a stack does to each of many layouts of one job (dmodel/varying.py). */

import type { Fact, Table, Value } from "./catalog";
import { isRule, type Words } from "./facts";
import { type Built, ffWidth, layers, own } from "./models";
import { headCost, stages } from "./layouts";
import type { Question, Resolver } from "./resolve";

export type Layout = Table<number>;

const valuesOf = (fact: Fact): Table<Value> => ({ ...fact.set, ...fact.means });
const about = (fact: Fact, names: Set<string>) => Object.keys(valuesOf(fact)).some((n) => names.has(n));
const tests = (fact: Fact) => Object.entries(fact.when ?? {});

/** A job whose layout is open, as facts see it. */
export class Job {
  private readonly known: Words;
  private readonly meanings: Fact[];
  private readonly held: Fact[];
  private readonly exact: Set<string>;
  private readonly asked: string[];
  private readonly late: Fact[];
  private readonly outcomes = new Map<string, Map<number, number>>();
  private readonly classes = new Map<string, Table<Value>>();
  /** Leaves of the plan that differ from layout to layout. */
  readonly leaves: string[];
  private readonly way: string;

  constructor(private readonly resolver: Resolver, private readonly question: Question) {
    const { catalog } = resolver, { first, search, stacks, leaves } = catalog.data;
    const devices = question.need("n_accel");
    const at = { dp: devices, tp: 1, pp: 1, cp: 1, ep: 1, micro_batch: 1 };
    const plain = resolver.words(question, at, catalog.knownAs(question.text("accelerator")));
    const { facts } = catalog.stack(question.text("stack"));
    const isFirst = (fact: Fact) => about(fact, new Set(first));
    const early = resolver.applied(question, facts.filter(isFirst), plain);
    const decided = Object.entries(resolver.evaluated(early.values, plain))
      .filter(([name]) => !search.asked.includes(name) && name !== "recompute");
    this.known = { ...plain, ...Object.fromEntries(decided) };
    this.late = facts.filter((fact) => !isFirst(fact));
    this.held = this.thatMayHold([...facts, ...stacks._after.fact].filter((f) => !isFirst(f)));
    const varying = this.depending(search.asked);
    this.leaves = Object.keys(leaves).filter((name) => varying.has(name));
    this.meanings = facts.filter((f) => search.meant.some((n) => n in (f.means ?? {})));
    this.exact = new Set(this.held.flatMap((f) => this.inputs(f)).filter((n) => search.asked.includes(n)));
    const named = new Set([...this.held.flatMap((f) => tests(f).map(([n]) => n)), ...this.exact]);
    this.asked = search.asked.filter((name) => named.has(name));
    this.way = String(this.decided({}).stages ?? "counted");
  }

  private inputs(fact: Fact): string[] {
    const { inputs } = this.resolver.catalog.data.search;
    return Object.values(valuesOf(fact)).flatMap((x) => (isRule(x) ? (inputs[x.rule] ?? []) : []));
  }

  private thatMayHold(facts: Fact[]): Fact[] {
    const { search, leaves } = this.resolver.catalog.data;
    const open = new Set([...search.asked, ...facts.flatMap((f) => Object.keys(valuesOf(f)))]);
    if (Number(this.known.n_experts) <= 1) for (const name of ["ep", "etp"]) open.delete(name);
    const hold = facts.filter((fact) => tests(fact).every(([name, wanted]) =>
      open.has(name) || this.resolver.facts.test(name, wanted, this.known[name])));
    const asked = hold.flatMap((f) => tests(f).map(([name]) => name));
    const wanted = new Set([...Object.keys(leaves), "stages", ...asked]);
    return hold.filter((fact) => about(fact, wanted));
  }

  /** Names that some fact sets by what it asks of some names, or of what these decide. */
  private depending(names: string[]): Set<string> {
    const found = new Set(names);
    for (let size = -1; size !== found.size; ) {
      size = found.size;
      for (const fact of this.held) {
        const asks = [...tests(fact).map(([n]) => n), ...this.inputs(fact)];
        if (asks.some((n) => found.has(n))) for (const n of Object.keys(valuesOf(fact))) found.add(n);
      }
    }
    for (const name of names) found.delete(name);
    return found;
  }

  private decided(layout: Layout): Table<Value> {
    const { resolver, question } = this, words = { ...this.known, ...layout };
    const late = resolver.applied(question, this.late, words);
    const seen = { ...words, ...resolver.plain(late.values) };
    const settings = new Set(Object.keys(question.settings));
    const after = resolver.facts.apply(resolver.catalog.data.stacks._after.fact, seen, settings);
    const values = resolver.evaluated({ ...late.values, ...after.values }, words);
    return { ...values, ...question.settings };
  }

  /** A number for a value of a name, the same for those that facts treat alike. */
  private outcome(name: string, value: number): number {
    let known = this.outcomes.get(name);
    if (!known) this.outcomes.set(name, (known = new Map()));
    let code = known.get(value);
    if (code === undefined) {
      code = this.exact.has(name) ? value : this.outcomeOf(name, value);
      known.set(value, code);
    }
    return code;
  }

  private readonly seen = new Map<string, number>();

  private outcomeOf(name: string, value: number): number {
    const each = this.held.flatMap((f) => tests(f)).filter(([n]) => n === name)
      .map(([n, wanted]) => Number(this.resolver.facts.test(n, wanted, value)));
    const key = `${name} ${each.join("")}`;
    if (!this.seen.has(key)) this.seen.set(key, this.seen.size);
    return this.seen.get(key)!;
  }

  /** Values of `leaves` for one layout, in their order. */
  values(layout: Layout): Table<Value> {
    let key = "";
    for (const name of this.asked) if (name in layout) key += `${this.outcome(name, layout[name])},`;
    let found = this.classes.get(key);
    if (!found) this.classes.set(key, (found = this.decided(layout)));
    return found;
  }

  /** ZeRO stage, sharding group and sequence parallelism of a layout as its stack takes them. */
  meant(layout: Layout): { zero: number; shard: number; sp: number } {
    const own = { zero: layout.zero, shard: layout.shard, sp: layout.sp };
    if (!this.meanings.length) return own;
    const { resolver, question } = this, known = { ...this.known, ...layout };
    const { asked } = resolver.catalog.data.search;
    const names = [...asked, ...Object.keys(question.settings), ...Object.keys(question.columns)];
    const said = resolver.facts.apply(this.meanings, known, new Set(names)).values;
    const found = { ...own, ...resolver.evaluated(said, known) } as Layout;
    const shard = Number(found.zero) ? Number(found.shard) : 1;
    return { zero: Number(found.zero), shard, sp: Number(found.sp) };
  }

  get changesMeanings(): boolean {
    return this.meanings.length > 0;
  }

  /** Whether facts treat two ZeRO stages unlike. */
  tellsApart(name: string, one: number, other: number): boolean {
    return this.asked.includes(name) && this.outcome(name, one) !== this.outcome(name, other);
  }

  /** The schedule of a pipeline where nothing says it. */
  schedule(): string {
    return String(this.decided({ pp: 2 }).schedule ?? "1f1b");
  }

  /** How layers lie on stages: `stage_excess` and `head_displaces`. */
  stages(built: Built, pp: number, interleave: number, fold: string): [number, number] {
    const { model } = built, whole = own(model, "n_layers");
    const head = headCost(own(model, "d_model"), ffWidth(built), own(model, "vocab"));
    const kinds = this.resolver.kinds(built, whole), further = layers(built) - whole;
    return stages(this.way, { layers: whole, head, pp, interleave, further, kinds, fold }, []);
  }
}

/** From words to records: dmodel/resolve.py in the browser, by the same data files. */

import { type Catalog, type Fact, InputError, remembered, type Table, type Value } from "./catalog";
import { Facts, isRule, type Words } from "./facts";
import { allows, headCost, RULES, stages } from "./layouts";
import { machine, precisionOf } from "./machine";
import {
  type Built, columnsOf, having, layers, Models, own, shortened, sized, type Sizes,
  structure, value,
} from "./models";
import { type Case, outputs, planOf, type Programs } from "./programs";
import { type Again, again, isOpen } from "./recompute";

const SIZES = ["n_layers", "d_model", "d_ff", "n_heads", "vocab"];
const WRITTEN = ["n_layers", "d_model", "d_ff", "n_heads"];

/** One configuration in words. */
export class Question {
  constructor(
    readonly columns: Table<number | string>, readonly settings: Table<Value> = {},
    readonly system = "",
  ) {}

  text(name: string): string {
    return String(this.columns[name] ?? "");
  }

  number(name: string): number | null {
    const found = this.columns[name];
    return found === undefined || found === "" ? null : Number(found);
  }

  need(name: string): number {
    const found = this.number(name);
    if (found === null) throw new InputError(`${name} is open; say it`);
    return found;
  }

  get precision(): string {
    return this.text("precision").split("-")[0].toLowerCase();
  }

  having(columns: Table<number | string>): Question {
    return new Question({ ...this.columns, ...columns }, this.settings, this.system);
  }
}

export interface Degrees {
  dp: number; tp: number; pp: number; cp: number; ep: number; micro_batch: number | null;
}

/** What blank recomputation has to fit: by what software holds, into a share of memory. */
export interface Room { footprint: Table<number>; share: number }

/** `question`: as it was resolved, its shape and what its stack means filled in. */
export interface Resolved { case: Case; built: Built; facts: Fact[]; open: boolean; question: Question }

const divides = (a: number, b: number) => b % a === 0;

export class Resolver {
  private readonly models: Models;
  readonly facts: Facts;

  constructor(
    readonly catalog: Catalog, private readonly programs: (structure: string) => Programs,
    private readonly usual: { coefficients: Table<number>; footprint: Table<number> },
  ) {
    this.models = new Models(catalog.data.kinds, catalog.data.sizes);
    this.facts = new Facts(catalog);
  }

  private catalogModel = remembered((name: string) => this.catalogModelAnew(name));
  private parametersOf = remembered((name: string) => this.parameters(this.catalogModel(name)!));
  private columnsOf = remembered((name: string) => this.columns(this.catalogModel(name)!));

  private catalogModelAnew(name: string): Built | null {
    const id = name ? this.catalog.known("models", this.catalog.identify(name)[0]) : undefined;
    if (id === undefined) return null;
    return shortened(this.models.of(this.catalog.data.models[id].shape), this.catalog.cut(name)[1]);
  }

  /** The catalog's model of a name. */
  builtOf(name: string): Built {
    const found = this.catalogModel(name);
    if (found === null) throw new InputError(`unknown model '${name}'`);
    return found;
  }

  private resolving(built: Built, plan: unknown, redo: Again | null = null): Table<number> {
    const names = this.programs(structure(built)).resolving;
    const nothing = new Proxy({}, { get: () => 0 });
    return outputs(names, { again: redo ?? nothing, model: built.model, plan }, true);
  }

  private parameters(built: Built): number {
    const { neutral, homes } = this.catalog.data;
    const plan = planOf({ ...neutral, global_batch: 1, dp: 1, shard: 1 }, homes);
    return this.resolving(built, plan).parameters;
  }

  private columns(built: Built): Sizes {
    return columnsOf(built, this.catalog.data.fromModel);
  }

  completed(question: Question): Question {
    const { fromModel, constants } = this.catalog.data;
    const open = (name: string) => !(name in question.columns);
    if (!SIZES.some(open)) return question;
    const built = this.catalogModel(question.text("model"));
    if (built === null) return question;
    const name = question.text("model");
    const known = { ...this.columnsOf(name), n_params: this.parametersOf(name) };
    const differs = (name: string) => {
      const given = Number(question.columns[name]), at = (known as Sizes)[name];
      if (name === "n_params") return !!given && Math.abs(given / at - 1) > constants.far;
      const counted = name === "n_experts" || name === "top_k" ? Math.max(given, 1) : given;
      return name !== "vocab" && counted !== at;
    };
    if ([...fromModel, "n_params"].some((name) => !open(name) && differs(name))) return question;
    const dense = !((known as Sizes).n_experts > 1);
    const names = fromModel.filter((n) => !dense || (n !== "n_experts" && n !== "top_k"));
    const filled = [...names, "seq_len"].filter(open).map((n) => [n, (known as Sizes)[n]]);
    return question.having(Object.fromEntries(filled));
  }

  degrees(question: Question): Degrees {
    const devices = question.need("n_accel");
    const given: Table<number | null> = {};
    for (const name of ["dp", "tp", "pp", "cp", "ep"]) given[name] = question.number(name);
    const blank = ["tp", "pp"].filter((name) => given[name] === null);
    const derived = given.dp === null ? "dp" : blank.length === 1 ? blank[0] : "";
    for (const n of ["tp", "pp", "cp", "ep"]) if (given[n] === null && n !== derived) given[n] = 1;
    const whole = (name: string) => given[name] || 1;
    const product = whole("dp") * whole("tp") * whole("pp") * whole("cp");
    if (derived && devices % product === 0) given[derived] = devices / product;
    else if (product !== devices)
      throw new InputError(
        `degrees do not multiply to the devices: dp·tp·pp·cp = ${product}, devices = ${devices}`,
      );
    return {
      dp: whole("dp"), tp: whole("tp"), pp: whole("pp"), cp: whole("cp"), ep: whole("ep"),
      micro_batch: question.number("micro_batch"),
    };
  }

  private tuning(question: Question): string {
    const said = String(question.settings.tuning || this.catalog.identify(question.text("model"))[1]);
    return said === "qlora" ? "lora" : said;
  }

  words(question: Question, at: Degrees, chip: string): Words {
    const stack = this.catalog.stack(question.text("stack")), layerCount = question.need("n_layers");
    const zero = question.number("zero_stage");
    return {
      stack: stack.basis, variant: stack.variant, release: stack.release,
      model: this.catalog.identify(question.text("model"))[0],
      chip, generation: this.catalog.generation(chip),
      precision: precisionOf(this.catalog, question),
      scaling: question.text("precision").toLowerCase() || precisionOf(this.catalog, question),
      attention: question.text("attention") !== "none" ? "flash" : "none",
      recompute: question.text("recompute"), composed: Boolean(question.settings.composed),
      n_experts: Math.max(question.number("n_experts") || 1, 1),
      top_k: question.number("top_k") || 1,
      n_layers: layerCount, stage_layers: layerCount / at.pp, devices: question.need("n_accel"),
      accel_per_node: question.number("accel_per_node"), seq_len: question.need("seq_len"),
      ...at, zero: zero ?? 1, shard: question.number("shard"),
      interleave: question.number("interleave"), ...question.settings,
      tuning: this.tuning(question), frozen: question.settings.tuning === "qlora" ? "nf4" : "",
    };
  }

  applied(question: Question, facts: Fact[], words: Words) {
    const given = new Set([...Object.keys(question.settings), ...Object.keys(question.columns)]);
    if ("zero_stage" in question.columns) given.add("zero");
    return this.facts.apply(facts, words, given);
  }

  evaluated(values: Table<Value>, words: Words): Table<Value> {
    const plain = this.plain(values), found = { ...plain };
    const asked = { ...this.catalog.data.leaves, ...words, ...plain };
    for (const [name, each] of Object.entries(values)) {
      if (!isRule(each)) continue;
      const said = RULES[each.rule](asked, each as never);
      if (said !== null) found[name] = said;
    }
    return found;
  }

  plain(values: Table<Value>): Table<Value> {
    return Object.fromEntries(Object.entries(values).filter(([, each]) => !isRule(each)));
  }

  private rules(schedule: string) {
    const { schedules } = this.catalog.data;
    if (!(schedule in schedules))
      throw new InputError(`schedule: expected one of ${Object.keys(schedules)}; got ${schedule}`);
    return schedules[schedule];
  }

  /** The pipeline's schedule, on one stage 1F1B; throws InputError where it does not run so. */
  private schedule(values: Table<Value>, of: Sizes): string {
    const { interleave, pp } = of;
    const chosen = String(values.schedule || (interleave > 1 ? "interleaved" : "1f1b"));
    const rules = this.rules(chosen), folded = rules.fold !== "loop";
    if (folded && pp <= 1) return this.schedule({}, of);
    if (rules.chunks && interleave !== rules.chunks)
      throw new InputError(`interleave: expected ${rules.chunks} for the schedule ${chosen}; got ${interleave}`);
    const batches = of.global_batch / (of.dp * of.micro_batch);
    if (folded && !allows(rules, pp, batches))
      throw new InputError(
        `schedule ${chosen}: expected pp a multiple of ${rules.multiple}, and at least ` +
        `${rules.fill * pp} micro-batches, a multiple of ${rules.pairs}; got pp = ${pp}, ${batches}`,
      );
    return chosen;
  }

  private layout(question: Question, at: Degrees, values: Table<Value>): Sizes {
    const etp = question.number("etp") || 1, ranks = at.dp * at.tp * at.cp;
    const given = question.number("zero_stage");
    const zero = Number(values.zero ?? given ?? 1);
    const written = values.shard ?? question.number("shard") ?? null;
    const shard = zero === 0 ? 1 : written !== null ? Number(written) : at.dp;
    const filled = (name: string) => question.number(name) ?? Number(values[name] || 1);
    const chosen = String(question.settings.schedule ?? values.schedule ?? "");
    const chunks = at.pp > 1 && chosen ? this.rules(chosen).chunks : 0;
    return {
      dp: at.dp, tp: at.tp, cp: at.cp, pp: at.pp, ep: Math.min(at.ep, ranks / etp), etp,
      sp: Number(values.sp ?? question.number("sp") ?? Number(at.tp > 1)), zero, shard,
      interleave: chunks > 1 ? question.number("interleave") ?? chunks : filled("interleave"),
      micro_batch: filled("micro_batch"),
      global_batch: question.need("global_batch"),
    };
  }

  private software(question: Question, at: Degrees, words: Words) {
    const of = this.catalog.stack(question.text("stack")), { first } = this.catalog.data;
    const isFirst = (fact: Fact) =>
      Object.keys({ ...fact.set, ...fact.means }).some((name) => first.includes(name));
    const early = this.applied(question, of.facts.filter(isFirst), words);
    const values = this.evaluated(early.values, words);
    const layout = this.layout(question, at, values);
    const { recompute: _, ...seen } = values;
    const asked: Words = { ...words, ...seen, ...layout, replicas: at.dp / layout.shard };
    const late = this.applied(question, of.facts.filter((fact) => !isFirst(fact)), asked);
    const known = { ...asked, ...this.plain(late.values) };
    const settings = new Set(Object.keys(question.settings));
    const after = this.facts.apply(this.catalog.data.stacks._after.fact, known, settings);
    const decided = this.evaluated({ ...late.values, ...after.values }, asked);
    return {
      first: values, layout, facts: [...early.facts, ...late.facts, ...after.facts],
      values: { ...values, ...decided, ...question.settings } as Table<Value>,
    };
  }

  private visited(question: Question, experts: number): number {
    const given = question.number("top_k");
    if (given || experts <= 1) return given || 1;
    const known = this.catalogModel(this.catalog.identify(question.text("model"))[0]);
    const columns = known && this.columns(known);
    return columns && columns.n_experts === experts ? columns.top_k : 1;
  }

  private known(question: Question): Built | null {
    const built = this.catalogModel(question.text("model"));
    if (built === null) return null;
    const columns = this.columnsOf(question.text("model"));
    const same = WRITTEN.every((name) => question.need(name) === columns[name]);
    const experts = Math.max(question.number("n_experts") || 1, 1);
    return same && experts === columns.n_experts ? built : null;
  }

  private shape(question: Question, known: Built | null): Sizes {
    const shape: Sizes = {};
    for (const name of [...SIZES, "seq_len"]) shape[name] = question.need(name);
    const heads = shape.n_heads, even = shape.d_model / heads;
    const size = known === null ? even : this.columns(known).head_dim;
    const latent = known !== null && having(known, "kv_rank").length > 0;
    shape.n_kv_heads = latent ? heads : question.number("n_kv_heads") || heads;
    shape.head_dim = latent ? size : question.number("head_dim") || size;
    const gated = question.number("gated_mlp");
    shape.gated_mlp = gated ?? Number(shape.d_ff !== 4 * shape.d_model);
    shape.n_experts = Math.max(question.number("n_experts") || 1, 1);
    shape.top_k = this.visited(question, shape.n_experts);
    return shape;
  }

  private asColumns(known: Built, shape: Sizes): Built {
    const now = this.columns(known);
    const changed = Object.fromEntries(
      Object.entries(shape).filter(([name, x]) => name in now && x !== now[name]),
    );
    let found = known;
    if ("n_layers" in changed) found = { ...found, order: [] };
    if ("d_ff" in changed) {
      const routed = having(found, "n_experts").length > 0;
      const feeds = found.model.feeds.map((feed) =>
        ("n_experts" in feed || (!routed && "d_ff" in feed) ? { ...feed, d_ff: changed.d_ff } : feed));
      found = { ...found, model: { ...found.model, feeds } };
      delete changed.d_ff;
    }
    const there = Object.entries(changed).filter(
      ([name]) => name in found.model || having(found, name).length,
    );
    return sized(found, Object.fromEntries(there));
  }

  private model(question: Question, settings: Table<Value>): Built {
    const known = this.known(question), shape = this.shape(question, known);
    const load = (known === null ? 1 : value(known, "imbalance", 1)) * Number(settings.imbalance ?? 1);
    let found = known === null ? this.models.decoder(shape) : this.asColumns(known, shape);
    if (having(found, "imbalance").length) found = sized(found, { imbalance: load });
    found = this.packed(question, settings, found);
    const trainable = Number(this.tuning(question) !== "lora");
    found = sized(found, {
      n_mtp: Number(settings.n_mtp ?? 0), trainable,
      tied_embeddings: known === null ? -1 : own(known.model, "tied_embeddings"),
    });
    if (!trainable) found = sized(found, adapters(settings, shape));
    const said = Object.entries(question.settings).filter(([name]) =>
      this.catalog.data.ofParts.includes(name));
    return sized(found, Object.fromEntries(said.map(([name, x]) => [name, Number(x)])));
  }

  private packed(question: Question, settings: Table<Value>, found: Built): Built {
    const window = Number(settings.packed_window ?? 0);
    const fused = question.text("attention") !== "none";
    const packs = 0 < window && window < own(found.model, "seq_len") && fused;
    const held = having(found, "window");
    if (!packs || !held.length || held.some((part) => part.window < this.catalog.data.constants.all)) return found;
    return sized(found, { window });
  }

  /** What the published count of parameters decides (dmodel/counted.py). */
  private settled(question: Question, built: Built): Built {
    const { far, near } = this.catalog.data.constants;
    const given = question.number("n_params") || 0;
    const gap = (of: Built) => Math.min(...[0, 1].map((tied) =>
      Math.abs(this.parameters(sized(of, { tied_embeddings: tied })) / given - 1)));
    let found = built;
    if (given && having(built, "gated_mlp").length) {
      const feeds = built.model.feeds.map((feed) =>
        ("gated_mlp" in feed ? { ...feed, gated_mlp: 1 - feed.gated_mlp } : feed));
      const other = { ...built, model: { ...built.model, feeds } };
      if (gap(built) > far && gap(other) < near) found = other;
    }
    const known = own(found.model, "tied_embeddings");
    const untied = this.parameters(sized(found, { tied_embeddings: 0 }));
    const whole = untied - own(found.model, "vocab") * own(found.model, "d_model");
    const tied = given > 0 && 3 * Math.abs(given - whole) < Math.abs(given - untied);
    const open = given <= 0 && known >= 0;
    return sized(found, { tied_embeddings: open ? known : Number(tied) });
  }

  private stageLeaves(question: Question, at: Degrees, values: Table<Value>, built: Built,
    interleave: number, fold: string): [number, number] {
    const text = question.text("stage_layers"), count = question.need("n_layers");
    const written = text.split(/\s+/).filter(Boolean).map(Number);
    const sum = written.reduce((a, b) => a + b, 0);
    if (text && (written.length !== at.pp || sum !== count || written.some((n) => !(n >= 0))))
      throw new InputError(`stage_layers: expected ${at.pp} numbers that add up to ${count}`);
    if (at.pp <= 1) return [0, 0];
    const width = own(built.model, "d_model");
    const head = headCost(width, value(built, "d_ff", width), own(built.model, "vocab"));
    const whole = own(built.model, "n_layers");
    const kinds = this.kinds(built, whole);
    const of = { layers: whole, head, pp: at.pp, interleave, further: layers(built) - whole, kinds, fold };
    return stages(String(values.stages ?? "counted"), of, written);
  }

  kinds(built: Built, whole: number) {
    const { pairs, order, model } = built;
    if (pairs.length === 1 || order.length !== Math.round(whole)) return null;
    const { neutral, homes } = this.catalog.data;
    const found = this.resolving(built, planOf({ ...neutral, global_batch: 1, dp: 1 }, homes));
    const flops = pairs.map((_, k) => found[`flops.${k}`]);
    const mean = flops.reduce((sum, x, k) => sum + x * model.shares[k], 0);
    const costs = flops.map((x) => x / mean);
    const further = own(model, "n_mtp") * costs.reduce((sum, x, k) => sum + x * model.further[k], 0);
    return { order, costs, further };
  }

  private check(question: Question): void {
    const lacking = [...SIZES, "seq_len"].filter((name) => !(name in question.columns));
    if (lacking.length)
      throw new InputError(
        `${lacking.join(", ")} open, and the catalog does not fill them for the model ` +
        `'${question.text("model")}'`,
      );
    const wrong = [...problems(question, this.degrees(question))];
    if (wrong.length) throw new InputError(wrong.join("; "));
  }

  /** Records of a question; no `room`: nothing is recomputed unless said. Throws InputError where
   * it has no answer. */
  resolve(asked: Question, room: Room | null = { footprint: this.usual.footprint, share: 1 }): Resolved {
    let question = this.completed(asked);
    this.check(question);
    const at = this.degrees(question), { data } = this.catalog;
    const chip = this.catalog.knownAs(question.text("accelerator"));
    const soft = this.software(question, at, this.words(question, at, chip));
    const meant: Table<number | string> = {};
    if ("vocab" in soft.first) meant.vocab = soft.first.vocab as number;
    if (question.text("recompute") && "recompute" in soft.first)
      meant.recompute = soft.first.recompute as string;
    if (!question.text("attention") && "attention" in soft.first)
      meant.attention = soft.first.attention as string;
    question = question.having(meant);
    const raw = this.model(question, soft.values);
    const experts = value(raw, "n_experts", 1);
    const [redo, said] = again(question, soft.values, experts, data.modules);
    const leaves: Sizes = { ...data.neutral, ...data.leaves };
    for (const name of Object.keys(data.leaves))
      if (name in soft.values) leaves[name] = Number(soft.values[name]);
    const { interleave } = soft.layout;
    const schedule = this.schedule(soft.values, soft.layout), { fold } = this.rules(schedule);
    const [excess, displaced] = this.stageLeaves(question, at, soft.values, raw, interleave, fold);
    for (const [name, of] of Object.entries(data.mixed)) leaves[name] = Number(of === schedule);
    Object.assign(leaves, { stage_excess: excess, head_displaces: displaced }, soft.layout, {
      flash: Number(question.text("attention") !== "none"),
      operand_bytes: data.operands[precisionOf(this.catalog, question)],
    });
    if ("placement" in soft.values)
      throw new InputError("placement: not on this page; ask `dmodel predict`");
    const cluster = machine(this.catalog, question, soft.values);
    const built = this.settled(question, raw);
    const open = isOpen(question, soft.values, said);
    this.redone(leaves, redo, built, cluster, open ? room : null);
    const facts = soft.facts.filter((fact) => this.matters(fact, raw));
    return { ...this.overridden(question, leaves, built, cluster), facts, open, question };
  }

  /** Not where a fact is about parts that a model lacks. */
  private matters(fact: Fact, built: Built): boolean {
    const { needs } = this.catalog.data, names = Object.keys({ ...fact.set, ...fact.means });
    const spoken = names.every((name) => name in needs);
    return !spoken || names.some((name) => having(built, needs[name]).length > 0);
  }

  private redone(leaves: Sizes, redo: Again, built: Built, cluster: Case["cluster"], room: Room | null) {
    const { homes } = this.catalog.data;
    const done = this.resolving(built, planOf(leaves, homes), redo);
    Object.assign(leaves, {
      recompute_layers: redo.layers, recompute_attention: redo.attention,
      recompute_products: done["redone.recompute_products"],
      recompute_elementwise: redo.streams, last_kept: redo.last_kept,
      recompute_bytes: done["redone.recompute_bytes"], offload: done["redone.offload"],
    });
    if (!room) return;
    const [layerShare, attention] = this.cheapest(leaves, built, cluster, room);
    Object.assign(leaves, { recompute_layers: layerShare, recompute_attention: attention });
    leaves.offload = this.resolving(built, planOf(leaves, homes), redo).offload;
  }

  /** The least recomputation whose memory fits the device. */
  private cheapest(leaves: Sizes, built: Built, cluster: Case["cluster"], room: Room): [number, number] {
    const program = this.programs(structure(built, cluster.network.size.length)).evaluated;
    const excess = (layerShare: number, attention: number) => {
      const own = { ...leaves, recompute_layers: layerShare, recompute_attention: attention };
      const plan = planOf(own, this.catalog.data.homes);
      const whole = { cluster, model: built.model, plan, ...this.usual, footprint: room.footprint };
      const found = outputs(program, { case: whole, spread: 1 }, false);
      return found["outputs.memory_bytes"] - room.share * cluster.chip.hbm_bytes;
    };
    const none = excess(0, 0), selective = excess(0, 1), full = excess(1, 0);
    if (none <= 0 || selective <= 0) return [0, Number(none > 0)];
    return [Math.min(Math.max(none / Math.max(none - full, 1), 0), 1), 0];
  }

  private overridden(question: Question, leaves: Sizes, built: Built, cluster: Case["cluster"]) {
    const { homes, overridden } = this.catalog.data;
    const model = { ...built.model };
    for (const [name, each] of Object.entries(question.settings)) {
      if (!overridden.includes(name)) continue;
      if (name in homes) leaves[name] = Number(each);
      else model[name] = Number(each);
    }
    const plan = planOf(leaves, homes), made = { ...built, model };
    return { case: { cluster, model, plan, ...this.usual }, built: made };
  }
}

function adapters(settings: Table<Value>, shape: Sizes): Sizes {
  const queries = shape.n_heads * shape.head_dim, keys = shape.n_kv_heads * shape.head_dim;
  const mlp = shape.n_experts <= 1 ? shape.d_ff : 0, up = 1 + shape.gated_mlp;
  const first: Sizes = {
    q_proj: queries, k_proj: keys, v_proj: keys, linear_qkv: queries + 2 * keys, up_proj: mlp,
    linear_fc1: up * mlp, ...(up > 1 ? { gate_proj: mlp } : {}),
  };
  const last: Sizes = { o_proj: queries, linear_proj: queries, down_proj: mlp, linear_fc2: mlp };
  const listed = (settings.adapters ?? []) as string[];
  const read = listed.filter((n) => n in first), returned = listed.filter((n) => n in last);
  const sum = (names: string[], of: Sizes) => names.reduce((total, n) => total + of[n], 0);
  return {
    first_adapters: read.length, first_adapted: sum(read, first),
    last_adapters: returned.length, last_adapted: sum(returned, last),
    adapter_dropout: Number(settings.adapter_dropout ?? 0),
  };
}

/** Reasons why a question with a whole shape cannot be answered (dmodel/checks.py). */
function* problems(question: Question, at: Degrees): Generator<string> {
  const heads = question.need("n_heads"), kv = question.number("n_kv_heads");
  const width = question.need("d_model"), depth = question.need("n_layers");
  const experts = question.number("n_experts") || 1, visited = question.number("top_k") || 1;
  const batch = question.need("global_batch"), length = question.need("seq_len");
  const micro = at.micro_batch || 1, chunks = at.pp * (question.number("interleave") || 1);
  const shard = question.number("shard");
  if (kv && heads % kv) yield `n_heads = ${heads} is not divisible by n_kv_heads = ${kv}`;
  if (!question.number("head_dim") && width % heads)
    yield `head_dim is blank and d_model = ${width} is not divisible by n_heads = ${heads}`;
  if (visited > experts) yield `top_k = ${visited} is more than n_experts = ${experts}`;
  if (!divides(at.tp, heads)) yield `tp = ${at.tp} does not divide n_heads = ${heads}`;
  if (at.pp > depth) yield `pp = ${at.pp} stages for n_layers = ${depth}`;
  if (at.pp > 1 && at.pp <= depth && depth <= chunks - at.pp)
    yield `pp·interleave = ${chunks} chunks for n_layers = ${depth}: chunks would have no layer`;
  if (!divides(at.cp, length)) yield `cp = ${at.cp} does not divide seq_len = ${length}`;
  if (!divides(at.dp * micro, batch))
    yield `global_batch = ${batch} is not divisible by dp·micro_batch = ${at.dp}·${micro}`;
  for (const name of ["stage_excess", "head_displaces"])
    if (Number(question.settings[name] ?? 0) > depth) yield `${name} is more than n_layers`;
  if (batch * length > 1e12)
    yield `global_batch · seq_len = ${batch * length} tokens a step: expected at most 1e12`;
  if (shard && at.dp % shard) yield `shard = ${shard} does not divide dp = ${at.dp}`;
  if (!divides(at.ep, experts)) yield `ep = ${at.ep} does not divide n_experts = ${experts}`;
}

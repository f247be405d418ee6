/** A pasted config.json as a model (dmodel/catalog/configs), by the same table of families. */

import { type Block, type Catalog, fold, InputError, type Kind, type Part, type Shape, type Table } from "./catalog";
import { isNumber, names, shown, truth, workedOut } from "./formula";

type Formulas = Table<unknown>;
type Said = Table<unknown>;
interface Condition { when: string; say: string }
interface PartFormulas { kind: string; sizes: Formulas }
interface Family {
  name: string; names?: string[]; defaults: Formulas; assumed: Formulas; let: Formulas; sizes: Formulas;
  mixer: string; feed: string; mixers: Table<PartFormulas>; feeds: Table<PartFormulas>; further: string;
  ignores: string[]; notes: Condition[]; refusals: Condition[];
}
export interface Configs {
  rules: {
    parts: string[]; towers: string[]; shared: string[]; spellings: Table<string[]>; further: string[];
    positive: string[]; any_number: string[]; harmless: string[]; structural: string[];
    mechanisms: Table<string>; types: Table<string>; encoders: Table<string>;
  };
  families: Table<Said>; plain: string; largest: number; deepest: number; free: string[]; own: string[];
}
interface Source {
  keys: Said; written: Table<string>; types: string[]; nested: string; outside: string[];
}
export interface Reading { shape: Shape; notes: string[] }

const isTable = (value: unknown): value is Said =>
  typeof value === "object" && value !== null && !Array.isArray(value);
const has = (table: object, name: string) => Object.hasOwn(table, name);
const spelled = (found: Source, key: string) => (has(found.written, key) ? found.written[key] : key);
const ENDING = /(For(CausalLM|ConditionalGeneration)|LMHeadModel|Model)$/;

class MissingKey extends Error {}

/** Reads configurations by the table. */
export class Reader {
  private readonly types = new Map<string, string>();
  private readonly families = new Map<string, Family>();
  private readonly harmless: RegExp;
  private readonly structural: RegExp;
  private readonly towers: RegExp;
  private readonly others: Set<string>;

  constructor(private readonly configs: Configs, private readonly kinds: Table<Kind>) {
    const { rules } = configs;
    this.harmless = new RegExp(`^(?:${rules.harmless.map((each) => `(?:${each})`).join("|")})$`);
    this.structural = new RegExp(rules.structural.join("|"));
    this.towers = new RegExp(rules.towers.join("|"));
    this.others = new Set(Object.values(rules.spellings).flat());
    for (const [name, said] of Object.entries(configs.families))
      for (const each of [name, ...((said.names as string[]) ?? [])]) this.types.set(fold(each), name);
  }

  /** The model of a text, and what was taken for granted. Throws InputError with the reason why not. */
  read(text: string): Reading {
    let content: unknown;
    try {
      content = JSON.parse(text.replace(/^\uFEFF/, ""));
    } catch (error) {
      throw new InputError(`not JSON (${(error as Error).message}); expected a Hugging Face config.json`);
    }
    if (!isTable(content)) throw new InputError("expected a JSON object with the keys of a Hugging Face config.json");
    const found = this.source(content), { rules } = this.configs;
    for (const [key, says] of Object.entries(rules.encoders))
      if (truth(found.keys[key]))
        throw new InputError(`'${key}' says ${says}; only decoders are modelled, and this is none`);
    const [family, word] = this.familyOf(found.types);
    for (const kind of found.types) {
      if (kind === word) break;
      if (has(rules.types, kind)) throw new InputError(`model_type '${kind}': ${rules.types[kind]}`);
    }
    const used = usedBy(family), scope = new Scope(found, family, this.configs);
    this.refuseMechanisms(found, used, word);
    const shape = this.shape(found, family, scope, used);
    return { shape, notes: [...new Set(this.notes(found, family, used, scope, word))] };
  }

  private source(content: Said): Source {
    const { parts, shared, spellings } = this.configs.rules;
    let config = plain(content) as Said, types = typesOf(config), nested = "", outside = objects(config);
    for (let part = parts.find((p) => isTable(config[p])); part; part = parts.find((p) => isTable(config[p]))) {
      const around = config, name = part;
      config = config[part] as Said;
      nested = nested ? `${nested}.${part}` : part;
      types = [...typesOf(config), ...types];
      outside = [...outside.filter((each) => each !== name), ...objects(config)];
      const taken = shared.filter((key) => (config[key] ?? null) === null && has(around, key));
      config = { ...config, ...Object.fromEntries(taken.map((key) => [key, around[key]])) };
    }
    const keys = { ...config }, written: Table<string> = {};
    for (const [key, others] of Object.entries(spellings)) {
      const other = others.find((each) => (config[each] ?? null) !== null);
      if ((config[key] ?? null) !== null || other === undefined) continue;
      keys[key] = config[other];
      written[key] = other;
      delete keys[other];
    }
    return { keys, written, types: [...new Set(types)], nested, outside };
  }

  private familyOf(types: string[]): [Family, string] {
    for (const each of types)
      for (const word of [each, each.replace(/_text$/, ""), each.replace(ENDING, "")]) {
        const name = this.types.get(fold(word));
        if (name !== undefined) return [this.family(name), each];
      }
    return [this.family(this.configs.plain), ""];
  }

  private said(name: string): Said {
    const own = this.configs.families[name];
    if (!("like" in own)) return own;
    const { names: _, ...below } = this.said(own.like as string);
    return merged(below, own);
  }

  private family(name: string): Family {
    if (!this.families.has(name)) {
      const said = this.said(name) as unknown as Family;
      const empty = { defaults: {}, assumed: {}, let: {}, further: "", ignores: [], notes: [], refusals: [] };
      const mixers = partsOf(said.mixers as never), feeds = partsOf(said.feeds as never);
      this.families.set(name, { ...empty, ...said, name, mixers, feeds });
    }
    return this.families.get(name)!;
  }

  private refuseMechanisms(found: Source, used: Set<string>, word: string): void {
    const { mechanisms } = this.configs.rules;
    for (const [key, value] of Object.entries(found.keys)) {
      if (used.has(key) || !saysSomething(value)) continue;
      if (has(mechanisms, key))
        throw new InputError(`'${spelled(found, key)}' is ${shown(value)}: ${mechanisms[key]}`);
      if (!word && this.isStructural(key, value))
        throw new InputError(`${unknown(found)}, and its key '${key}' (${shown(value)}) is none of a plain ` +
          "decoder's; what it means is not known here");
    }
  }

  private isStructural(key: string, value: unknown): boolean {
    if (typeof value === "boolean" || typeof value === "string") return false;
    return !this.harmless.test(key) && !this.others.has(key) && this.structural.test(key);
  }

  private shape(found: Source, family: Family, scope: Scope, used: Set<string>): Shape {
    for (const each of family.refusals)
      if (holds(each.when, scope)) throw new InputError(scope.words(each.say));
    const missing: string[] = [];
    while (missing.length <= used.size) {
      try {
        const shape = this.model(family, scope);
        if (!missing.length) return shape;
        break;
      } catch (error) {
        if (error instanceof MissingKey) {
          missing.push(error.message);
          found.keys[error.message] = 1;
        } else if (!(error instanceof InputError) || !missing.length) throw error;
        else break;
      }
    }
    const known = family.name !== this.configs.plain;
    const what = known ? `model_type '${found.types[0]}' needs the missing keys`
      : `${unknown(found)}, and keys of a decoder are missing`;
    throw new InputError(`${what}: ${missing.join(", ")}`);
  }

  private model(family: Family, scope: Scope): Shape {
    const sizes: Said = {};
    for (const [name, formula] of Object.entries(family.sizes)) sizes[name] = scope.value(formula);
    const { layers: depth, ...own } = sizes, { deepest } = this.configs;
    if (!isNumber(depth) || !(Number(depth) >= 1 && Number(depth) <= deepest))
      throw new InputError(`'num_hidden_layers': expected a whole number from 1 to ${deepest.toLocaleString("en")}, got ${shown(depth)}`);
    const layers = Array.from({ length: Math.trunc(Number(depth)) }, (_, i): [unknown, unknown] => {
      const mixer = scope.of({ i }).value(family.mixer);
      return [mixer, scope.of({ i, mixer, feed: "" }).value(family.feed)];
    });
    for (const [name, size] of Object.entries(own)) this.check(name, size, "model", ["small"]);
    const blocks: Omit<Block, "layers">[] = [], order: number[] = [];
    const place = (block: Omit<Block, "layers">) => {
      const key = sorted(block), at = blocks.findIndex((each) => sorted(each) === key);
      return at >= 0 ? at : blocks.push(block) - 1;
    };
    layers.forEach(([mixer, feed], i) => order.push(place(this.block(family, scope.of({ i, mixer, feed }), mixer, feed, i))));
    const count = blocks.length, last = layers[layers.length - 1];
    const inner = scope.of({ i: layers.length - 1, mixer: last[0], feed: last[1] });
    const said = family.further ? (inner.value(family.further) as [unknown, unknown][] | null) : null;
    const further = (truth(said) ? said! : [last]).map(([mixer, feed]) => {
      const at = truth(said) ? layers.length : layers.length - 1;
      return place(this.block(family, scope.of({ i: at, mixer, feed }), mixer, feed, at));
    });
    const whole = blocks.map((block, k) => ({ layers: k < count ? order.filter((x) => x === k).length : 0, ...block }));
    const laid = whole.length > 1 ? { order: order.join(" ") } : {};
    const numbers = Object.fromEntries(Object.entries(own).map(([name, x]) => [name, Number(x)]));
    return { ...numbers, blocks: whole, ...laid, further };
  }

  private block(family: Family, scope: Scope, mixer: unknown, feed: unknown, i: number): Omit<Block, "layers"> {
    const found: Table<Part> = {};
    const sides: [string, unknown, Table<PartFormulas>][] =
      [["mixer", mixer, family.mixers], ["feed", feed, family.feeds]];
    for (const [side, name, known] of sides) {
      if (name === "") continue;
      if (typeof name !== "string" || !has(known, name))
        throw new InputError(`layer ${i}: ${shown(name)} is no ${side} that is read here; expected one of: ${Object.keys(known).join(", ")}`);
      found[side] = this.part(known[name], scope, `layer ${i}, ${name}`);
    }
    return found;
  }

  private part(of: PartFormulas, scope: Scope, where: string): Part {
    const free = Object.keys(of.sizes).filter((name) => !this.kinds[of.kind].counted.includes(name));
    const sizes: Table<number> = {};
    for (const [name, formula] of Object.entries(of.sizes)) {
      const size = scope.value(formula);
      if (size === null) continue;
      this.check(name, size, where, free);
      sizes[name] = Number(size);
    }
    const { n_heads: heads, n_kv_heads: shared, top_k: top, n_experts: experts } = sizes;
    if (heads && shared && heads % shared)
      throw new InputError(`${where}: the ${heads} heads are not a multiple of the ${shared} KV heads`);
    if (top && experts && top > experts)
      throw new InputError(`${where}: top-k ${top} exceeds the ${experts} experts`);
    return { ...sizes, kind: of.kind };
  }

  private check(name: string, size: unknown, where: string, mayBeZero: string[]): void {
    const { largest, free, own } = this.configs;
    const least = mayBeZero.includes(name) || own.includes(name) ? 0 : 1;
    const whole = isNumber(size) && Math.abs(Number(size)) <= largest ** 2 && Number.isInteger(Number(size));
    if (!whole || (Number(size) < least && !free.includes(name)))
      throw new InputError(`${where}: ${name}: expected a whole number from ${least}, got ${shown(size)}`);
  }

  private *notes(found: Source, family: Family, used: Set<string>, scope: Scope, word: string): Generator<string> {
    const outside = found.outside.filter((key) => this.towers.test(key));
    if (found.nested) yield `the language model in '${found.nested}' is read`;
    if (outside.length) yield `other towers are left out: ${outside.join(", ")}`;
    if (!word) yield `${unknown(found)}: read by its keys, as a decoder`;
    else if (!found.nested && word !== found.types[0])
      yield `${unknown(found)}: read as ${family.name}, by the architecture ${word}`;
    for (const each of family.notes) if (holds(each.when, scope)) yield scope.words(each.say);
    for (const [key, value] of Object.entries(scope.assumed))
      yield `${key} is not in the file: ${Number(Number(value).toPrecision(12))}, as transformers has it`;
    for (const key of this.configs.rules.further)
      if (truth(found.keys[key])) yield `heads of further tokens (${key} ${found.keys[key]}) are left out (n_mtp 0)`;
    const unused = Object.entries(found.keys).filter(([key, value]) =>
      !used.has(key) && saysSomething(value) && this.isStructural(key, value)).map(([key]) => key);
    if (unused.length) yield `keys that are not used: ${unused.join(", ")}`;
  }
}

function unknown(found: Source): string {
  return found.types.length ? `model_type '${found.types[0]}' is not known` : "there is no 'model_type'";
}

function plain(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(plain);
  if (isTable(value)) return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, plain(each)]));
  if (typeof value !== "string") return value;
  const low = value.toLowerCase();
  return low === "true" ? true : low === "false" ? false : value;
}

function typesOf(config: Said): string[] {
  const kind = config.model_type ?? null, built = config.architectures;
  if (kind !== null && typeof kind !== "string")
    throw new InputError(`'model_type': expected a name, got ${shown(kind)}; not supported`);
  const listed = Array.isArray(built) ? built.filter((each) => typeof each === "string") : [];
  return kind ? [kind, ...listed] : listed;
}

const objects = (config: Said) => Object.keys(config).filter((key) => isTable(config[key]));

function merged(below: Said, above: Said): Said {
  const found = { ...below };
  for (const [key, value] of Object.entries(above)) {
    const old = found[key];
    if (isTable(value) && isTable(old)) found[key] = merged(old, value);
    else if (Array.isArray(value) && Array.isArray(old)) found[key] = [...old, ...value];
    else found[key] = value;
  }
  return found;
}

function partsOf(tables: Table<Said>): Table<PartFormulas> {
  return Object.fromEntries(Object.entries(tables).map(([name, own]) => {
    let found = { ...own };
    while ("like" in found) {
      const { like, ...rest } = found;
      found = { ...tables[like as string], ...rest };
    }
    const { kind, ...sizes } = found;
    return [name, { kind: kind as string, sizes }];
  }));
}

function usedBy(family: Family): Set<string> {
  const parts = [...Object.values(family.mixers), ...Object.values(family.feeds)].map((part) => part.sizes);
  const tables = [family.defaults, family.let, family.sizes, ...parts];
  const texts = tables.flatMap((each) => Object.values(each)).filter((x): x is string => typeof x === "string");
  texts.push(family.mixer, family.feed, family.further || "0");
  texts.push(...[...family.notes, ...family.refusals].map((each) => each.when));
  return new Set([...texts.flatMap(names), ...Object.keys(family.defaults), ...Object.keys(family.assumed),
    ...family.ignores]);
}

const saysSomething = (value: unknown) =>
  value === true || (truth(value) && value !== 1 && value !== "none" && value !== "None");

function sorted(value: unknown): string {
  return JSON.stringify(value, (_, x) =>
    (isTable(x) ? Object.fromEntries(Object.entries(x).sort(([a], [b]) => (a < b ? -1 : 1))) : x));
}

function holds(formula: string, scope: Scope): boolean {
  try {
    return truth(scope.value(formula));
  } catch (error) {
    if (error instanceof MissingKey) return false;
    throw error;
  }
}

/** Values of names in formulas: of a layer, the family, the file, then what an absent key means. */
class Scope {
  assumed: Said = {};

  constructor(
    private readonly found: Source, private readonly family: Family, private readonly configs: Configs,
    private readonly local: Said = {},
  ) {}

  of(local: Said): Scope {
    const inner = new Scope(this.found, this.family, this.configs, local);
    inner.assumed = this.assumed;
    return inner;
  }

  value(formula: unknown): unknown {
    return typeof formula === "string" ? workedOut(formula, (name) => this.look(name)) : formula;
  }

  words(text: string): string {
    return text.replace(/\{(\w+)\}/g, (_, name) => {
      const value = this.look(name);
      return typeof value === "string" ? value.slice(0, 40) : shown(value);
    });
  }

  private look(name: string): unknown {
    const { family } = this;
    if (has(this.local, name)) return this.local[name];
    if (has(family.let, name)) return this.value(family.let[name]);
    const value = has(this.found.keys, name) ? this.found.keys[name] : null;
    if (value !== null && value !== undefined) return this.checked(name, value);
    if (has(family.assumed, name)) return (this.assumed[name] = this.value(family.assumed[name]));
    if (has(family.defaults, name)) return this.value(family.defaults[name]);
    throw new MissingKey(spelled(this.found, name));
  }

  private checked(name: string, value: unknown): unknown {
    const { positive, any_number: any } = this.configs.rules, { largest } = this.configs;
    const needed = positive.includes(name) && !Array.isArray(value);
    if (any.includes(name) || !(typeof value === "number" || needed)) return value;
    const least = Number(needed);
    if (typeof value !== "number" || !(value >= least && value <= largest && Number.isInteger(value)))
      throw new InputError(`'${spelled(this.found, name)}': expected a whole number from ${least} to ` +
        `${largest.toLocaleString("en")}, got ${shown(value)}`);
    return value;
  }
}

const PASTED = "config-";

/** Takes a model's shape, as a link holds it, into a catalog; its name there. Throws InputError where
 * it is none. */
export function taken(catalog: Catalog, text: string): string {
  let shape: unknown;
  try {
    shape = JSON.parse(text);
  } catch {
    throw new InputError("the link's model is not readable");
  }
  const { kinds, configs } = catalog.data;
  if (!isShape(shape, kinds, configs.deepest)) throw new InputError("the link's model is none");
  let sum = 2166136261;
  for (let i = 0; i < text.length; i++) sum = Math.imul(sum ^ text.charCodeAt(i), 16777619) >>> 0;
  const name = `${PASTED}${sum.toString(16)}`;
  if (!(name in catalog.data.models)) catalog.put(name, shape);
  return name;
}

function isShape(value: unknown, kinds: Table<Kind>, deepest: number): value is Shape {
  const { blocks, order, further, ...sizes } = isTable(value) ? value : ({} as Said);
  const isSize = (x: unknown) => typeof x === "number" && Number.isFinite(x);
  const isPart = (x: unknown): boolean => x === undefined || (isTable(x) && Object.hasOwn(kinds, String(x.kind)) &&
    Object.entries(x).every(([name, size]) => name === "kind" || (has(kinds[String(x.kind)].fields, name) && isSize(size))));
  const isDepth = (x: unknown) => isSize(x) && Number(x) >= 0 && Number(x) <= deepest;
  const isBlock = (x: unknown) => isTable(x) && isDepth(x.layers) && isPart(x.mixer) && isPart(x.feed);
  const are = (x: unknown, each: (one: unknown) => boolean) => Array.isArray(x) && x.length > 0 && x.every(each);
  const count = Array.isArray(blocks) ? blocks.length : 0;
  const isPlace = (x: unknown) => Number.isInteger(x) && Number(x) >= 0 && Number(x) < count;
  const laid = order === undefined || (typeof order === "string" && /^\d+( \d+)*$/.test(order) &&
    order.split(" ").every((each) => isPlace(Number(each))));
  return are(blocks, isBlock) && laid && are(further, isPlace) && Object.values(sizes).every(isSize) &&
    ["seq_len", "d_model", "vocab"].every((name) => name in sizes);
}

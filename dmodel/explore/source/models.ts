/** Models as numbers: blocks of the catalog, and plain decoders (dmodel/catalog/shapes.py). */

import { type Block, InputError, type Kind, type Part, type Shape, type Table } from "./catalog";

export type Sizes = Table<number>;
export interface Model extends Table<unknown> {
  shares: number[]; further: number[]; mixers: Sizes[]; feeds: Sizes[];
}
/** A model, and what of it is no number: kinds of its parts, their pairs, the order of layers. */
export interface Built {
  model: Model; kinds: { mixers: string[]; feeds: string[] };
  pairs: [number, number][]; order: number[];
}

export const own = (model: Model, name: string) => model[name] as number;
export const parts = (of: Built) => [...of.model.mixers, ...of.model.feeds];
export const having = (of: Built, name: string) => parts(of).filter((part) => name in part);

/** Kinds of a model's parts and their pairs, and the levels of a network of more than two: what
 * programs go by. */
export function structure(of: Built, levels = 2): string {
  const pairs = of.pairs.map((pair) => pair.join("+")).join(" ") + (levels === 2 ? "" : ` ${levels}`);
  return `${of.kinds.mixers.join(",")}|${of.kinds.feeds.join(",")}|${pairs}`;
}

export class Models {
  constructor(
    private readonly kinds: Table<Kind>, private readonly sizes: Table<number | null>,
  ) {}

  private partOf(said: Part): Sizes {
    const kind = this.kinds[said.kind], found: Sizes = {};
    for (const [name, usual] of Object.entries(kind.fields)) {
      const value = said[name] ?? usual;
      if (value === null) throw new InputError(`${said.kind}: ${name} missing`);
      found[name] = Number(value);
    }
    return found;
  }

  private side(blocks: Block[], name: "mixer" | "feed"): [string[], Sizes[], number[]] {
    const keys: string[] = [], kinds: string[] = [], found: Sizes[] = [], places: number[] = [];
    for (const block of blocks) {
      const said = block[name];
      if (!said) {
        places.push(-1);
        continue;
      }
      const key = JSON.stringify(Object.entries(said).sort(([a], [b]) => (a < b ? -1 : 1)));
      if (!keys.includes(key)) {
        keys.push(key);
        kinds.push(said.kind);
        found.push(this.partOf(said));
      }
      places.push(keys.indexOf(key));
    }
    return [kinds, found, places];
  }

  assembled(sizes: Sizes, blocks: Block[], order: number[] = [], further?: number[]): Built {
    const total = blocks.reduce((sum, block) => sum + block.layers, 0);
    const [mixerKinds, mixers, first] = this.side(blocks, "mixer");
    const [feedKinds, feeds, second] = this.side(blocks, "feed");
    const heads = further ?? [blocks.length - 1];
    const model = {
      shares: blocks.map((block) => block.layers / total),
      further: blocks.map((_, k) => heads.filter((each) => each === k).length),
      mixers, feeds,
    } as unknown as Model;
    for (const [name, usual] of Object.entries(this.sizes))
      model[name] = name === "n_layers" ? total : (sizes[name] ?? usual);
    const pairs = first.map((i, k) => [i, second[k]] as [number, number]);
    return { model, kinds: { mixers: mixerKinds, feeds: feedKinds }, pairs, order };
  }

  of(shape: Shape): Built {
    const { blocks, order, further, ...sizes } = shape;
    if (blocks === undefined) return this.decoder(sizes as Sizes);
    const laid = (order ?? "").split(" ").filter(Boolean).flatMap((run) => {
      const [kind, many] = run.split("x").map(Number);
      return Array(many ?? 1).fill(kind) as number[];
    });
    return this.assembled(sizes as Sizes, blocks, laid, further);
  }

  decoder(shape: Sizes): Built {
    const said = { ...shape };
    const taken = new Set(["n_layers"]);
    const pick = (kind: string, names: string[]) => {
      const part: Table<number | string> = { kind };
      for (const name of names) if (name in said) (part[name] = said[name]), taken.add(name);
      return part as Part;
    };
    const fields = (kind: string) => Object.keys(this.kinds[kind].fields);
    const inner = (kind: string) => fields(kind).filter((n) => !(n in this.sizes));
    const experts = (said.n_experts ?? 1) > 1 ? "experts" : "dense";
    const block = {
      layers: said.n_layers,
      mixer: pick("attention", inner("attention")),
      feed: pick(experts, inner(experts)),
    };
    return this.assembled(said, [block]);
  }
}

export function shortened(of: Built, layers: number | null): Built {
  if (layers === null || layers === own(of.model, "n_layers")) return of;
  return { ...of, model: { ...of.model, n_layers: layers }, order: [] };
}

export function sized(of: Built, sizes: Sizes): Built {
  const changed = (part: Sizes) => {
    const found = { ...part };
    for (const [name, value] of Object.entries(sizes)) if (name in part) found[name] = value;
    return found;
  };
  const model: Model = { ...of.model, mixers: of.model.mixers.map(changed) };
  model.feeds = of.model.feeds.map(changed);
  for (const [name, value] of Object.entries(sizes)) {
    if (name in of.model) model[name] = value;
    else if (!having(of, name).length)
      throw new InputError(`${name}: no part of this model has it`);
  }
  return { ...of, model };
}

export const layers = (of: Built) =>
  own(of.model, "n_layers") + own(of.model, "n_mtp") * of.model.further.reduce((a, b) => a + b, 0);

export function weights(of: Built): number[] {
  const whole = layers(of), { model } = of;
  const kinds = of.pairs.map((_, k) =>
    (own(model, "n_layers") * model.shares[k] + own(model, "n_mtp") * model.further[k]) / whole);
  const side = (place: 0 | 1, count: number) =>
    Array.from({ length: count }, (_, i) => {
      const held = kinds.filter((_, k) => of.pairs[k][place] === i);
      return held.length === kinds.length ? 1 : held.reduce((a, b) => a + b, 0);
    });
  return [...side(0, model.mixers.length), ...side(1, model.feeds.length)];
}

/** A size of the model, or the mean over the layers that have it. */
export function value(of: Built, name: string, otherwise = 0): number {
  if (name in of.model) return own(of.model, name);
  const each = weights(of);
  const found = parts(of).map((part, i) => [each[i], part[name]]).filter(([, x]) => x !== undefined);
  if (!found.length) return otherwise;
  const whole = found.reduce((sum, [weight]) => sum + weight, 0);
  if (found.length === 1 && whole === 1) return found[0][1];
  return whole > 0 ? found.reduce((sum, [weight, x]) => sum + weight * x, 0) / whole : otherwise;
}

const WITHOUT: Sizes = { gated_mlp: 0 };

/** What the columns of a shape say of a model. */
export function columnsOf(of: Built, names: string[]): Sizes {
  const each = weights(of), all = parts(of), found: Sizes = {};
  const most = (name: string) => {
    if (name in of.model) return own(of.model, name);
    let best = -1, value = WITHOUT[name] ?? 1;
    all.forEach((part, i) => {
      if (name in part && each[i] > best) [best, value] = [each[i], part[name]];
    });
    return value;
  };
  for (const name of [...names, "seq_len"]) found[name] = most(name);
  if (!having(of, "n_kv_heads").length) found.n_kv_heads = found.n_heads;
  const routed = of.model.feeds.find((feed) => "n_experts" in feed);
  found.d_ff = routed ? routed.d_ff : most("d_ff");
  return found;
}

/** Width of one routed expert, else of the MLP, else 1; of several the mean. */
export function ffWidth(of: Built): number {
  const each = weights(of);
  const mean = (chosen: [number, number][], otherwise: number) => {
    const whole = chosen.reduce((sum, [weight]) => sum + weight, 0);
    return whole > 0 ? chosen.reduce((sum, [w, x]) => sum + w * x, 0) / whole : otherwise;
  };
  const those = (routed: boolean) => parts(of).flatMap((part, i) =>
    ("d_ff" in part && "n_experts" in part === routed ? [[each[i], part.d_ff] as [number, number]] : []));
  return mean(those(true), mean(those(false), 1));
}

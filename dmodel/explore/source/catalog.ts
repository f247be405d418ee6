/** The catalog as data, and names however they are spelled: as dmodel/catalog has them. */

import type { Configs } from "./configs";

export type Table<T> = Record<string, T>;
export type Value = number | string | boolean | string[] | Rule;
export interface Rule { rule: string; [argument: string]: number | string }
export interface Fact {
  set?: Table<Value>; means?: Table<Value>; when?: Table<unknown>;
  source: string; date: string; says?: string;
}
/** What a search may propose for a stack. */
export interface Runs {
  zero?: number[]; schedules?: string[]; degrees?: string[]; uneven?: boolean;
}
export interface File {
  id: string; about: string; lineage: string; emits: string; extends: string[];
  members: string[]; aliases: string[]; fact: Fact[]; runs: Runs;
}
export interface Chip {
  aliases: string[]; generation: string; maker: string; system?: string; like?: string;
  rates: Table<number>; numbers: Table<number>;
}
export interface Host { link: number; memory: number; devices: number }
export interface System { aliases: string[]; chip: string; levels: Table<number>[]; names: string[] }
export type Part = { kind: string } & Table<number | string>;
export interface Block { layers: number; mixer?: Part; feed?: Part }
export type Shape = Table<unknown> & { blocks?: Block[]; order?: string; further?: number[] };
export interface Kind { counted: string[]; split: string[]; copied: string[]; fields: Table<number | null> }
export interface Data {
  chips: Table<Chip>; systems: Table<System>; hosts: Table<Host>;
  models: Table<{ aliases: string[]; shape: Shape }>;
  stacks: Table<File>; kinds: Table<Kind>; sizes: Table<number | null>;
  conditions: Table<string>; heads: string[]; first: string[];
  neutral: Table<number>; leaves: Table<number>; homes: Table<string>; overridden: string[];
  operands: Table<number>; usual: string[]; bytes: string[]; modules: Table<Table<number>>;
  ofParts: string[]; fromModel: string[]; quantities: Table<{ part: string; leaf: string }>;
  constants: Table<number>; needs: Table<string>; search: Searching; configs: Configs;
  /** What schedules ask of a layout, in the order of their codes; the leaf that stands for each but 1F1B. */
  schedules: Table<Rules>; mixed: Table<string>;
}
/** dmodel/records/schedule.py. */
export interface Rules {
  chunks: number; fold: string; copies: number; multiple: number; pairs: number; fill: number;
}
/** What a search over layouts varies, and what facts may ask of a layout. */
export interface Searching {
  zero: number[]; recompute: number[]; schedules: string[]; degrees: string[]; uneven: boolean;
  sp: number[]; risk: number;
  deviations: number; digits: number; plainness: string[]; open: string[]; neutral: string[];
  asked: string[]; inputs: Table<string[]>; meant: string[];
}

/** What a question cannot be answered for, in words. */
export class InputError extends Error {}

export const fold = (name: string) => name.replace(/[\s_-]+/g, "").toLowerCase();

const MAKERS =
  /^((NVIDIA|AMD|Instinct|Tesla|GeForce|Quadro|Intel(\(R\))?|Habana|AWS|Google)[\s_-]+)+/i;
const OF_HUBS = /[-_\s](hf|base|instruct|chat|it|pt|v\d+(\.\d+)*)$/i;
const TUNED = /[-_\s]+(sft|lora)$/i;
const CUT = /[-_\s]+(\d+)[-_\s]?layers?$/i;

/** A function of texts that computes each answer once. */
export function remembered<A extends string[], R>(of: (...words: A) => R): (...words: A) => R {
  const found = new Map<string, R>();
  return (...words) => {
    const key = words.join("\n");
    if (!found.has(key)) {
      if (found.size > 5000) found.clear();
      found.set(key, of(...words));
    }
    return found.get(key)!;
  };
}

type Named = "chips" | "systems" | "models";

/** Names of a catalog, and the stacks that its files describe. */
export class Catalog {
  private spellings = new Map<string, Map<string, string>>();
  private families = new Map<string, [string, string]>();
  private patterns: [string, string][] = [];

  constructor(readonly data: Data) {
    for (const kind of ["chips", "systems", "models"] as Named[]) {
      const of = new Map<string, string>();
      for (const [name, entry] of Object.entries(data[kind]))
        for (const each of [name, ...entry.aliases]) of.set(fold(each), name);
      this.spellings.set(kind, of);
    }
    for (const file of Object.values(data.stacks)) {
      const own = file.id.startsWith("_") ? [] : [[file.id, file.id]];
      for (const each of file.members) {
        if (each.endsWith("*")) this.patterns.push([each.slice(0, -1), file.id]);
        else own.push([each, each]);
      }
      for (const each of file.aliases) own.push([each, file.id]);
      for (const [spelling, family] of own)
        this.families.set(fold(spelling), [family, file.id]);
    }
    this.patterns.sort((a, b) => b[0].length - a[0].length);
  }

  known = remembered((kind: Named, name: string) => this.knownAnew(kind, name));
  stack = remembered((name: string) => this.stackAnew(name));
  identify = remembered((name: string) => this.identifyAnew(name));

  /** Takes in a model under a name of its own. */
  put(name: string, shape: Shape): void {
    this.data.models[name] = { aliases: [], shape };
    this.spellings.get("models")!.set(fold(name), name);
  }

  private knownAnew(kind: Named, name: string): string | undefined {
    const of = this.spellings.get(kind)!;
    const bare = kind === "chips" ? name.trim().replace(MAKERS, "") : name;
    return of.get(fold(name)) ?? of.get(fold(bare));
  }

  canonical(kind: Named, name: string): string {
    return this.known(kind, name) ?? name.trim().replace(/[\s_]+/g, "-").toLowerCase();
  }

  resolved(kind: Named, name: string): string {
    const found = this.known(kind, name);
    if (found === undefined) throw new InputError(`unknown ${kind.slice(0, -1)} '${name}'`);
    return found;
  }

  knownAs(chip: string): string {
    const main = this.canonical("chips", chip);
    return this.data.chips[main]?.like ?? main;
  }

  generation(chip: string): string {
    const main = this.known("chips", chip);
    return main === undefined ? "" : this.data.chips[main].generation;
  }

  cut(name: string): [string, number | null] {
    const found = CUT.exec(name.trim());
    return found ? [name.trim().slice(0, found.index), Number(found[1])] : [name, null];
  }

  knownModel(name: string): string | undefined {
    const own = this.cut(name)[0].trim().split("/").pop()!;
    const tried = [name, own, own.replace(/^meta[-_\s]/i, "")];
    for (;;) {
      const shorter = tried[tried.length - 1].replace(OF_HUBS, "");
      if (shorter === tried[tried.length - 1]) break;
      tried.push(shorter);
    }
    for (const each of tried) {
      const found = this.known("models", each);
      if (found !== undefined) return found;
    }
    return undefined;
  }

  /** Canonical id of a model, and how its name says that it is tuned. */
  private identifyAnew(name: string): [string, string] {
    const ending = TUNED.exec(name.trim());
    const base = ending ? name.trim().slice(0, ending.index) : name;
    const id = this.knownModel(base) ?? this.canonical("models", base);
    return [id, ending ? ending[1].toLowerCase() : "none"];
  }

  knownFamily(name: string): [string, string] | undefined {
    const low = name.trim().toLowerCase();
    const found = this.patterns.find(([start]) => low.startsWith(start));
    return this.families.get(fold(name)) ?? (found && [low, found[1]]);
  }

  private chain(file: File): Fact[] {
    const inherited = file.extends.flatMap((name) => {
      const parent = this.parent(name);
      return parent ? this.chain(parent) : [];
    });
    return [...inherited, ...file.fact];
  }

  /** What a search may propose for a stack, of its file or what that extends. */
  runs(name: string): Runs {
    const seen = (file: File): Runs => {
      if (Object.keys(file.runs).length) return file.runs;
      for (const each of file.extends) {
        const parent = this.parent(each), found = parent ? seen(parent) : {};
        if (Object.keys(found).length) return found;
      }
      return {};
    };
    const found = this.knownFamily(name.split("/")[0].trim());
    return found ? seen(this.data.stacks[found[1]]) : {};
  }

  private parent(name: string): File | undefined {
    return this.data.stacks[name] ??
      this.data.stacks[this.knownFamily(name.split("/")[0])?.[1] ?? ""];
  }

  /** Family, variant, release and facts of a stack. */
  private stackAnew(name: string) {
    const at = name.indexOf("/");
    const family = (at < 0 ? name : name.slice(0, at)).trim();
    const variant = at < 0 ? "" : name.slice(at + 1).trim();
    const found = this.knownFamily(family);
    const every = this.data.stacks._every.fact;
    const file = found && this.data.stacks[found[1]];
    return {
      basis: found ? found[0] : family,
      variant,
      release: variant ? this.release(variant) : NEWEST,
      facts: file ? [...every, ...this.chain(file)] : every,
    };
  }

  release(text: string): number[] | null {
    if (this.data.heads.includes(text.toLowerCase())) return NEWEST;
    const found = /^v?(\d+(?:\.\d+)+)/.exec(text);
    return found ? found[1].split(".").map(Number) : null;
  }
}

export const NEWEST = [1e6];

/** The interpreter of facts: conditions as plain data, applied in order (dmodel/catalog/facts.py). */

import type { Catalog, Fact, Table, Value } from "./catalog";

export type Words = Table<unknown>;

const RANGE = /^(>=|<=|>|<)\s*(.+)$/;
const isNumber = (value: unknown): value is number => typeof value === "number";
const isRange = (value: unknown) => typeof value === "string" && RANGE.test(value);
const low = (value: unknown) => (typeof value === "string" ? value.toLowerCase() : undefined);
const isRule = (value: unknown): value is { rule: string } =>
  typeof value === "object" && value !== null && "rule" in value;

function order(a: number[], b: number[]): number {
  for (let i = 0; i < Math.min(a.length, b.length); i++) if (a[i] !== b[i]) return a[i] - b[i];
  return a.length - b.length;
}

const KEEPS: Table<(gap: number) => boolean> = {
  ">=": (gap) => gap >= 0, "<=": (gap) => gap <= 0, ">": (gap) => gap > 0, "<": (gap) => gap < 0,
};

export class Facts {
  constructor(private readonly catalog: Catalog) {}

  private kindOf(name: string, wanted: unknown): string {
    const known = this.catalog.data.conditions[name];
    if (known !== undefined) return known;
    const first = Array.isArray(wanted) && wanted.length ? wanted[0] : wanted;
    return isNumber(first) || isRange(first) ? "number" : "word";
  }

  /** Whether a value of a word is what a condition wants. */
  test(name: string, wanted: unknown, value: unknown): boolean {
    return this.holds(wanted, this.kindOf(name, wanted), value);
  }

  private holds(wanted: unknown, kind: string, value: unknown): boolean {
    if (Array.isArray(wanted)) {
      const not = wanted.length > 0 && wanted.every((each) => String(each).startsWith("!"));
      const holds = (each: unknown) => this.holds(each, kind, value);
      return not ? wanted.every(holds) : wanted.some(holds);
    }
    if (typeof wanted === "boolean") return Boolean(value) === wanted;
    if (isNumber(wanted)) return isNumber(value) && value === wanted;
    return this.ofText(String(wanted), kind, value);
  }

  private ofText(wanted: string, kind: string, value: unknown): boolean {
    if (wanted === "") return value === undefined || value === null || value === "";
    if (wanted.startsWith("!")) return !this.holds(wanted.slice(1), kind, value);
    if (isRange(wanted)) return wanted.split(",").every((part) => this.inside(part, kind, value));
    if (kind === "release") {
      const exact = this.catalog.release(wanted);
      return Array.isArray(value) && exact !== null && order(value, exact) === 0;
    }
    if (wanted.endsWith("*"))
      return low(value)?.startsWith(wanted.slice(0, -1).toLowerCase()) ?? false;
    const named = kind === "models" || kind === "chips";
    const name = named ? this.catalog.canonical(kind, wanted) : wanted;
    return low(value) === name.toLowerCase();
  }

  private inside(bound: string, kind: string, value: unknown): boolean {
    const [, compare, edge] = RANGE.exec(bound.trim())!;
    if (kind !== "release") return isNumber(value) && KEEPS[compare](value - Number(edge));
    const release = /^\d+$/.test(edge) ? [Number(edge)] : this.catalog.release(edge);
    return Array.isArray(value) && release !== null && KEEPS[compare](order(value, release));
  }

  /** Facts in order; the last that holds decides a name. */
  apply(facts: Fact[], words: Words, given: Set<string>) {
    let known = words;
    const values: Table<Value> = {}, by = new Map<string, Fact>(), held: Fact[] = [];
    for (const fact of facts) {
      const when = Object.entries(fact.when ?? {});
      if (!when.every(([n, w]) => this.test(n, w, known[n]))) continue;
      held.push(fact);
      const open = Object.entries(fact.set ?? {}).filter(([name]) => !given.has(name));
      for (const [name, value] of [...open, ...Object.entries(fact.means ?? {})]) {
        values[name] = typeof value === "boolean" ? Number(value) : value;
        by.set(name, fact);
      }
      known = { ...words, ...values };
    }
    const decided = new Set(by.values());
    return { values, facts: held.filter((fact) => decided.has(fact)) };
  }
}

export { isRule, isNumber };

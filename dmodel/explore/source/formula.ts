/** Formulas of configurations, in Python's notation (dmodel/catalog/configs/formula.py). */

import { InputError } from "./catalog";

export type Look = (name: string) => unknown;
type Node = { names: Set<string>; of: (look: Look) => unknown };

const TOKEN = /\s*(?:(\d+(?:\.\d+)?(?:e-?\d+)?)|("[^"]*"|'[^']*')|(not in\b|[A-Za-z_]\w*)|(\/\/|==|!=|<=|>=|[-+*/%<>()[\],]))/y;
const CONSTANTS: Record<string, unknown> = { True: true, False: false, None: null };
const FUNCTIONS = ["len", "max", "min", "int", "up_to", "listed", "numbers"];

/** Whether Python takes a value for true. */
export const truth = (value: unknown): boolean =>
  (Array.isArray(value) ? value.length > 0
    : typeof value === "object" && value !== null ? Object.keys(value).length > 0 : Boolean(value));

export const isNumber = (value: unknown): value is number | boolean =>
  typeof value === "number" || typeof value === "boolean";

/** A value as Python writes it, cut at 40 letters. */
export function shown(value: unknown): string {
  const text = (x: unknown): string => {
    if (x === null || x === undefined) return "None";
    if (typeof x === "boolean") return x ? "True" : "False";
    if (typeof x === "string") return x.includes("'") && !x.includes('"') ? `"${x}"` : `'${x}'`;
    if (Array.isArray(x)) return `[${x.map(text).join(", ")}]`;
    if (typeof x === "object")
      return `{${Object.entries(x).map(([k, v]) => `${text(k)}: ${text(v)}`).join(", ")}}`;
    return String(x);
  };
  return text(value).slice(0, 40);
}

function same(a: unknown, b: unknown): boolean {
  if (isNumber(a) && isNumber(b)) return Number(a) === Number(b);
  if (Array.isArray(a) && Array.isArray(b)) return a.length === b.length && a.every((x, i) => same(x, b[i]));
  return a === b;
}

class NoValue extends Error {}

function number(value: unknown): number {
  if (!isNumber(value)) throw new NoValue(`no number: ${shown(value)}`);
  return Number(value);
}

function held(one: unknown, several: unknown): boolean {
  if (Array.isArray(several)) return several.some((each) => same(one, each));
  if (typeof several === "string" && typeof one === "string") return several.includes(one);
  if (typeof several === "object" && several !== null) return Object.hasOwn(several, String(one));
  throw new NoValue(`no list: ${shown(several)}`);
}

function added(a: unknown, b: unknown): unknown {
  if (Array.isArray(a) && Array.isArray(b)) return [...a, ...b];
  if (typeof a === "string" && typeof b === "string") return a + b;
  return number(a) + number(b);
}

function multiplied(a: unknown, b: unknown): unknown {
  const [many, each] = isNumber(a) ? [a, b] : [b, a];
  const times = Math.max(number(many), 0);
  if (typeof each === "string" || Array.isArray(each)) {
    if (!Number.isInteger(times) || times > 1e5) throw new NoValue("too long");
    return typeof each === "string" ? each.repeat(times) : Array(times).fill(each).flat(1);
  }
  return number(a) * number(b);
}

function divided(a: unknown, b: unknown, way: (x: number) => number): number {
  if (number(b) === 0) throw new NoValue("division by zero");
  return way(number(a) / number(b));
}

function ordered(a: unknown, b: unknown): number {
  if (typeof a === "string" && typeof b === "string") return a < b ? -1 : Number(a > b);
  return number(a) - number(b);
}

const OPERATORS: Record<string, (a: unknown, b: unknown) => unknown> = {
  "+": added, "-": (a, b) => number(a) - number(b), "*": multiplied,
  "/": (a, b) => divided(a, b, (x) => x), "//": (a, b) => divided(a, b, Math.floor),
  "%": (a, b) => number(a) - number(b) * divided(a, b, Math.floor),
};
const COMPARED: Record<string, (a: unknown, b: unknown) => boolean> = {
  "==": same, "!=": (a, b) => !same(a, b), "<": (a, b) => ordered(a, b) < 0,
  "<=": (a, b) => ordered(a, b) <= 0, ">": (a, b) => ordered(a, b) > 0, ">=": (a, b) => ordered(a, b) >= 0,
  in: held, "not in": (a, b) => !held(a, b),
};

function whole(value: unknown): number {
  const found = typeof value === "string" ? Number(value.trim() || NaN) : number(value);
  if (!Number.isFinite(found)) throw new NoValue(`no number: ${shown(value)}`);
  return Math.trunc(found);
}

function called(name: string, given: unknown[]): unknown {
  const [value] = given;
  const all = given.length === 1 && Array.isArray(value) ? value : given;
  switch (name) {
    case "len":
      if (typeof value === "string" || Array.isArray(value)) return value.length;
      if (typeof value === "object" && value !== null) return Object.keys(value).length;
      throw new NoValue(`no list: ${shown(value)}`);
    case "max": return all.map(number).reduce((a, b) => Math.max(a, b));
    case "min": return all.map(number).reduce((a, b) => Math.min(a, b));
    case "int": return whole(value);
    case "up_to": return -Math.floor(-divided(value, given[1], (x) => x)) * number(given[1]);
    case "listed": return Array.isArray(value) || typeof value === "string";
    default:
      if (typeof value !== "string" && !Array.isArray(value)) throw new NoValue(`no list: ${shown(value)}`);
      return (typeof value === "string" ? value.split(",") : value).map(whole);
  }
}

function element(name: string, of: unknown, index: unknown): unknown {
  if (typeof of === "object" && of !== null && !Array.isArray(of))
    return Object.hasOwn(of, String(index)) ? ((of as Record<string, unknown>)[String(index)] ?? null) : null;
  if (!Array.isArray(of) && typeof of !== "string")
    throw new InputError(`'${name}': expected a list, got ${shown(of)}`);
  const at = number(index);
  if (!(-of.length <= at && at < of.length))
    throw new InputError(`'${name}': expected an entry for each layer, at least ${at + 1}; got ${of.length}`);
  return of[at < 0 ? at + of.length : at];
}

/** Reads the notation: one method for each level of what binds. */
class Parser {
  private readonly tokens: string[] = [];
  private at = 0;

  constructor(private readonly text: string) {
    TOKEN.lastIndex = 0;
    while (TOKEN.lastIndex < text.trimEnd().length) {
      const found = TOKEN.exec(text);
      if (!found) throw new Error(`formula not read: ${text}`);
      this.tokens.push(found[0].trim());
    }
  }

  whole(): Node {
    const found = this.chosen();
    if (this.at < this.tokens.length) throw new Error(`formula not read: ${this.text}`);
    return found;
  }

  private is(...words: string[]): string | null {
    const found = this.tokens[this.at];
    if (found === undefined || !words.includes(found)) return null;
    this.at += 1;
    return found;
  }

  private need(word: string): void {
    if (!this.is(word)) throw new Error(`formula not read: ${this.text}`);
  }

  private node(of: Node["of"], ...parts: Node[]): Node {
    return { of, names: new Set(parts.flatMap((part) => [...part.names])) };
  }

  private chosen(): Node {
    const yes = this.either();
    if (!this.is("if")) return yes;
    const test = this.either();
    this.need("else");
    const no = this.chosen();
    return this.node((look) => (truth(test.of(look)) ? yes : no).of(look), yes, test, no);
  }

  private either(): Node {
    const parts = [this.both()];
    while (this.is("or")) parts.push(this.both());
    return this.first(parts, true);
  }

  private both(): Node {
    const parts = [this.not()];
    while (this.is("and")) parts.push(this.not());
    return this.first(parts, false);
  }

  private first(parts: Node[], wanted: boolean): Node {
    if (parts.length === 1) return parts[0];
    return this.node((look) => {
      let value: unknown = null;
      for (const part of parts) {
        value = part.of(look);
        if (truth(value) === wanted) break;
      }
      return value;
    }, ...parts);
  }

  private not(): Node {
    if (!this.is("not")) return this.compared();
    const inner = this.not();
    return this.node((look) => !truth(inner.of(look)), inner);
  }

  private compared(): Node {
    const parts = [this.sum()], operators: string[] = [];
    for (let op = this.is(...Object.keys(COMPARED)); op; op = this.is(...Object.keys(COMPARED))) {
      operators.push(op);
      parts.push(this.sum());
    }
    if (!operators.length) return parts[0];
    return this.node((look) => {
      let left = parts[0].of(look);
      for (let i = 0; i < operators.length; i++) {
        const right = parts[i + 1].of(look);
        if (!COMPARED[operators[i]](left, right)) return false;
        left = right;
      }
      return true;
    }, ...parts);
  }

  private row(words: string[], next: () => Node): Node {
    let left = next();
    for (let op = this.is(...words); op; op = this.is(...words)) {
      const [a, b, act] = [left, next(), OPERATORS[op]];
      left = this.node((look) => act(a.of(look), b.of(look)), a, b);
    }
    return left;
  }

  private sum = (): Node => this.row(["+", "-"], this.product);
  private product = (): Node => this.row(["*", "/", "//", "%"], this.sign);
  private sign = (): Node => {
    if (!this.is("-")) return this.after();
    const inner = this.sign();
    return this.node((look) => -number(inner.of(look)), inner);
  };

  private after(): Node {
    const start = this.at;
    let found = this.atom();
    while (this.is("[")) {
      const held = found, name = this.tokens.slice(start, this.at - 1).join("");
      const index = this.chosen();
      this.need("]");
      found = this.node((look) => element(name, held.of(look), index.of(look)), held, index);
    }
    return found;
  }

  private several(end: string): Node[] {
    const found: Node[] = [];
    while (!this.is(end)) {
      found.push(this.chosen());
      this.is(",");
    }
    return found;
  }

  private atom(): Node {
    const token = this.tokens[this.at++];
    if (token === "(") {
      const inner = this.chosen();
      this.need(")");
      return inner;
    }
    if (token === "[") {
      const parts = this.several("]");
      return this.node((look) => parts.map((part) => part.of(look)), ...parts);
    }
    if (/^\d/.test(token)) return this.node(() => Number(token));
    if (/^["']/.test(token)) return this.node(() => token.slice(1, -1));
    if (Object.hasOwn(CONSTANTS, token)) return this.node(() => CONSTANTS[token]);
    if (FUNCTIONS.includes(token) && this.is("(")) {
      const parts = this.several(")");
      return this.node((look) => called(token, parts.map((part) => part.of(look))), ...parts);
    }
    return { of: (look) => look(token), names: new Set([token]) };
  }
}

const parsed = new Map<string, Node>();

function read(text: string): Node {
  let found = parsed.get(text);
  if (!found) parsed.set(text, (found = new Parser(text).whole()));
  return found;
}

export const names = (text: string): string[] => [...read(text).names];

/** The value of a formula. Throws InputError where a value is not of the kind that it needs. */
export function workedOut(text: string, look: Look): unknown {
  try {
    return read(text).of(look);
  } catch (error) {
    if (!(error instanceof NoValue)) throw error;
    throw new InputError(`${names(text).sort().join(", ")}: no value can be made of them (${error.message})`);
  }
}

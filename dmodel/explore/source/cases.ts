/** Records of questions, for tests: what the interpreter makes of them. */

import { Model } from "./answer";
import { Catalog, type Data, InputError } from "./catalog";
import { Reader, taken } from "./configs";
import type { Profile } from "./profile";
import { type Program, type Programs, inputs } from "./programs";
import { Question, Resolver } from "./resolve";
import { structure } from "./models";
import { Search } from "./search";

interface Asked { columns: never; settings: never; system: string }
type Texts = Record<string, Record<keyof Programs, Omit<Program, "run"> & { text: string }>>;
type Compile = (text: string) => Program["run"];

export const infinite = (_: string, value: unknown) => (value === "inf" ? Infinity : value);
export { joined, unfolded } from "./unfolded";

function compiled(texts: Texts, compile: Compile): (name: string) => Programs {
  const made = new Map<string, Programs>();
  return (name) => {
    if (!made.has(name)) {
      if (!(name in texts)) throw new InputError(`no program for ${name}`);
      const of = Object.entries(texts[name]).map(([key, one]) =>
        [key, { ...one, run: compile(one.text) }]);
      made.set(name, Object.fromEntries(of) as Programs);
    }
    return made.get(name)!;
  };
}

export function answers(
  data: Data, texts: Texts, usual: never, asked: Asked[], compile: Compile,
): unknown[] {
  const programs = compiled(texts, compile);
  const resolver = new Resolver(new Catalog(data), programs, usual);
  return asked.map((each) => {
    try {
      const found = resolver.resolve(new Question(each.columns, each.settings, each.system));
      const of = programs(structure(found.built, found.case.cluster.network.size.length)).evaluated;
      return {
        structure: structure(found.built), inputs: [...inputs(of, { case: found.case, spread: 1 })],
        facts: found.facts.map((fact) => fact.says),
      };
    } catch (error) {
      if (error instanceof InputError) return { error: error.message };
      throw error;
    }
  });
}

interface Given { data: Data; texts: Texts; profile: Profile }

/** The best plans of jobs, and what the page says of each plan once it is asked for. */
export function best(given: Given, asked: Asked[], top: number, compile: Compile): unknown[] {
  const model = new Model(given.data, given.profile, compiled(given.texts, compile));
  const search = new Search(model);
  return asked.map(({ columns, settings, system }) => {
    const start = performance.now(), found = search.best(new Question(columns, settings, system), top);
    return { ...found, milliseconds: performance.now() - start };
  });
}

/** What configurations say: a shape with notes, or why it is not read. */
export function configs(data: Data, texts: string[]): unknown[] {
  const reader = new Reader(data.configs, data.kinds);
  return texts.map((text) => {
    try {
      const found = reader.read(text);
      taken(new Catalog(structuredClone(data)), JSON.stringify(found.shape));
      return found;
    } catch (error) {
      if (error instanceof InputError) return { error: error.message };
      throw error;
    }
  });
}

/** Records of questions, for tests: what the interpreter makes of them. */

import { Catalog, type Data, InputError } from "./catalog";
import { type Program, type Programs, inputs } from "./programs";
import { Question, Resolver } from "./resolve";
import { structure } from "./models";

interface Asked { columns: never; settings: never; system: string }
type Texts = Record<string, Record<keyof Programs, Omit<Program, "run"> & { text: string }>>;
type Compile = (text: string) => Program["run"];

/** Numbers with the text "inf" where they are infinite. */
export const infinite = (_: string, value: unknown) => (value === "inf" ? Infinity : value);

export function answers(
  data: Data, texts: Texts, usual: never, asked: Asked[], compile: Compile,
): unknown[] {
  const made = new Map<string, Programs>();
  const programs = (name: string): Programs => {
    if (!made.has(name)) {
      if (!(name in texts)) throw new InputError(`no program for ${name}`);
      const of = Object.entries(texts[name]).map(([key, one]) =>
        [key, { ...one, run: compile(one.text) }]);
      made.set(name, Object.fromEntries(of) as Programs);
    }
    return made.get(name)!;
  };
  const resolver = new Resolver(new Catalog(data), programs, usual);
  return asked.map((each) => {
    try {
      const found = resolver.resolve(new Question(each.columns, each.settings, each.system));
      const of = programs(structure(found.built)).evaluated;
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

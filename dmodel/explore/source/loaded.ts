/** What the page was given: packed data, and programs, which load as scripts of their own. */

import { type Data, InputError, type Table } from "./catalog";
import type { Known } from "./doubt";
import type { Limits } from "./limits";
import type { Profile } from "./profile";
import type { Program, Programs } from "./programs";
import type { Published } from "./published";

type Texts = Table<Omit<Program, "run">>;
type OfProfile = Profile & { intervals: Known["said"] | null };
export interface Given {
  data: Data; profile: OfProfile; programs: Table<Texts>; packed: Table<string>; published: string;
  limits: Limits; id: string;
}
declare global { var dmodelPrograms: Table<Table<Program["run"]>> }

export const infinite = (_: string, value: unknown) => (value === "inf" ? Infinity : value);

async function unpacked(text: string): Promise<Response> {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip")));
}

/** The script of a structure's programs. */
export async function scriptOf(given: Given, name: string): Promise<string> {
  return (await unpacked(given.packed[name])).text();
}

export async function publishedOf(given: Given): Promise<Published | null> {
  return (await unpacked(given.published)).json();
}

export async function knownOf(given: Given): Promise<Known | null> {
  const said = given.profile.intervals;
  if (!said) return null;
  const [correlations, deviations, places] =
    await Promise.all([said.correlations, said.deviations, said.places].map(unpacked));
  return {
    said, correlations: new Int8Array(await correlations.arrayBuffer()),
    deviations: await deviations.json(), places: await places.json(),
  };
}

/** Loads the programs of a structure as a script: the page allows no evaluation. */
export async function load(given: Given, name: string): Promise<void> {
  if (name in globalThis.dmodelPrograms || !(name in given.packed)) return;
  const url = URL.createObjectURL(new Blob([await scriptOf(given, name)], { type: "text/javascript" }));
  await new Promise<void>((done, failed) => {
    const script = document.createElement("script");
    script.src = url;
    script.onload = () => done();
    script.onerror = () => failed(new Error(`programs of ${name} do not load`));
    document.head.append(script);
  });
  URL.revokeObjectURL(url);
}

/** A structure whose programs are there, but not loaded yet. */
export class Missing extends Error {}

/** Programs of structures by name, as they are loaded. */
export function programsOf(programs: Given["programs"]): (name: string) => Programs {
  const made = new Map<string, Programs>();
  return (name) => {
    if (!(name in programs))
      throw new InputError("models with these kinds of layers are not on this page; ask `dmodel predict`");
    if (!(name in globalThis.dmodelPrograms)) throw new Missing(name);
    if (!made.has(name)) {
      const run = globalThis.dmodelPrograms[name];
      const pairs = Object.entries(programs[name]).map(([key, one]) => [key, { ...one, run: run[key] }]);
      made.set(name, Object.fromEntries(pairs) as Programs);
    }
    return made.get(name)!;
  };
}

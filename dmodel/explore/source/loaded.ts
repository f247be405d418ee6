/** What the page was given: packed data, and programs, which load as scripts of their own. */

import { type Data, InputError, type Table } from "./catalog";
import type { Known } from "./doubt";
import type { Limits } from "./limits";
import type { Profile } from "./profile";
import type { Programs } from "./programs";
import type { Published } from "./published";
import { joined, unfolded } from "./unfolded";

type OfProfile = Profile & { intervals: Known["said"] | null };
export interface Given {
  data: Data; profile: OfProfile; packed: Table<[string, string]>; published: string;
  limits: Limits; id: string;
}
declare global { var dmodelPrograms: Table<Programs> }

/** What the page holds; the size of a network without an end is a word there. */
export function givenIn(text: string): Given {
  const given: Given = JSON.parse(text);
  for (const { levels } of Object.values(given.data.systems))
    for (const level of levels) if ((level.size as unknown) === "inf") level.size = Infinity;
  return given;
}

async function unpacked(text: string): Promise<Response> {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip")));
}

/** The folded script of a structure's programs. */
async function foldedOf(given: Given, name: string): Promise<string> {
  const [base, text] = given.packed[name];
  const [own, other] = await Promise.all([unpacked(text).then((found) => found.text()), base && foldedOf(given, base)]);
  return joined(own, other);
}

/** The script of a structure's programs. */
export async function scriptOf(given: Given, name: string): Promise<string> {
  return unfolded(await foldedOf(given, name));
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

const LOADS = new Map<string, Promise<void>>();

/** Loads the programs of a structure as a script, once: the page allows no evaluation. */
export function load(given: Given, name: string): Promise<void> {
  let found = LOADS.get(name);
  if (!found) LOADS.set(name, (found = loaded(given, name)));
  return found;
}

async function loaded(given: Given, name: string): Promise<void> {
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

/** Programs of structures by name, as they are loaded. `there`: names of those on the page. */
export function programsOf(there: string[]): (name: string) => Programs {
  return (name) => {
    if (name in globalThis.dmodelPrograms) return globalThis.dmodelPrograms[name];
    if (there.includes(name)) throw new Missing(name);
    const levels = Number(/ (\d+)$/.exec(name)?.[1] ?? 2), alone = levels > 2 ? ` on a network of ${levels} levels` : "";
    throw new InputError(`models with these kinds of layers${alone} are not on this page; ask \`dmodel predict\``);
  };
}

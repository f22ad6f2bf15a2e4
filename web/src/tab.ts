// Which tab this is. The name survives a reload; a copy of a tab gets one of its own; and what is held under the name of
// a tab that is gone can be told from what a living one still works on.

const PLACE = "qkv-tab";
const lock = (id: string) => `qkv-tab ${id}`;

export interface Tab {
  id: string;
  /** The tabs that are open now, this one among them. */
  open(): Promise<Set<string>>;
}

export async function thisTab(): Promise<Tab> {
  let id = kept() ?? fresh();
  // A copied tab has the name of the one it was copied from, which holds the lock. After a reload the page before this
  // one may still be about to let go of it.
  if (!(await hold(id))) {
    id = fresh();
    await hold(id);
  }
  try {
    sessionStorage.setItem(PLACE, id);
  } catch {
    // Without a store the name lasts as long as the page.
  }
  return {
    id,
    async open() {
      const { held = [] } = (await navigator.locks?.query()) ?? {};
      return new Set([id, ...held.map(({ name }) => name ?? "").filter((name) => name.startsWith(lock(""))).map((name) => name.slice(lock("").length))]);
    },
  };
}

/** Holds the name until the page goes; false if another tab has it. Where there are no locks nobody can have it. */
function hold(id: string): Promise<boolean> {
  if (!navigator.locks) return Promise.resolve(true);
  return new Promise((resolve) => {
    const forever = () => {
      resolve(true);
      return new Promise<never>(() => undefined);
    };
    navigator.locks.request(lock(id), { signal: AbortSignal.timeout(1000) }, forever).catch(() => resolve(false));
  });
}

function kept(): string | null {
  try {
    return sessionStorage.getItem(PLACE);
  } catch {
    return null;
  }
}

export function fresh(): string {
  return [...crypto.getRandomValues(new Uint8Array(8))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

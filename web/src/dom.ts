// Elements made in one expression. Text is always set as text, never parsed.

type Child = Node | string | null | undefined | false;
type Listener = (event: any) => void;
type Props = Record<string, string | number | boolean | null | undefined | Listener>;

export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  props: Props = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  return fill(document.createElement(tag), props, children);
}

export function s(tag: string, props: Props = {}, ...children: Child[]): SVGElement {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag) as SVGElement, props, children);
}

function fill<E extends Element>(element: E, props: Props, children: Child[]): E {
  for (const [name, value] of Object.entries(props)) {
    if (typeof value === "function") element.addEventListener(name.replace(/^on/, ""), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, String(value));
  }
  append(element, ...children);
  return element;
}

export function append(element: Element, ...children: Child[]): void {
  for (const child of children) if (child) element.append(child);
}

export function put(element: Element, ...children: Child[]): void {
  element.replaceChildren();
  append(element, ...children);
}

let last = 0;
export function unique(prefix: string): string {
  last += 1;
  return `${prefix}-${last}`;
}

/** Runs `action` once, `wait` milliseconds after the last call; `flush` runs it now if it is due. */
export function later(action: () => void, wait: number): { (): void; flush(): void } {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const run = () => {
    timer = undefined;
    action();
  };
  const call = () => {
    clearTimeout(timer);
    timer = setTimeout(run, wait);
  };
  call.flush = () => {
    if (timer === undefined) return;
    clearTimeout(timer);
    run();
  };
  return call;
}

export function download(name: string, type: string, text: string): void {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = h("a", { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

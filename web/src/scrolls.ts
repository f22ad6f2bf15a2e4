// Marks what is wider than its place and scrolls in it, on the side where there is more, so that a cut table shows it.

const WIDE = ".scrolls, pre, figure.formula, .step-code";

function mark(box: Element): void {
  const room = box.scrollWidth - box.clientWidth;
  const left = box.scrollLeft > 4;
  const right = box.scrollLeft < room - 4;
  const more = left && right ? "both" : left ? "left" : right ? "right" : "";
  if (more) box.setAttribute("data-more", more);
  else box.removeAttribute("data-more");
}

export function markScrolling(): void {
  let asked = false;
  const all = () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      for (const box of document.querySelectorAll(WIDE)) mark(box);
    });
  };
  new MutationObserver(all).observe(document.body, { childList: true, subtree: true });
  addEventListener("resize", all);
  // Opening a fold is no change of the tree; a scroll is told to the box alone, and is caught on its way down.
  document.addEventListener("toggle", all, true);
  document.addEventListener("scroll", ({ target }) => target instanceof Element && target.matches(WIDE) && mark(target), {
    capture: true,
    passive: true,
  });
  void document.fonts.ready.then(all);
}

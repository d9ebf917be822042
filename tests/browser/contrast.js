// Returns the contrast of every visible text with the background at its centre, as defined by WCAG.
() => {
  const parse = (text) => {
    const numbers = (text.match(/-?[\d.]+(e-?\d+)?/g) || []).map(Number);
    if (text.startsWith("color(")) return [...numbers.slice(0, 3).map((part) => 255 * part), numbers[3] ?? 1];
    if (text === "none" || text === "transparent") return [0, 0, 0, 0];
    return [numbers[0], numbers[1], numbers[2], numbers[3] ?? 1];
  };
  const over = (top, ground) => ground.map((part, i) => top[3] * top[i] + (1 - top[3]) * part);
  const light = (colour) => {
    const parts = colour.map((part) => part / 255).map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const ratio = (one, other) => {
    const [low, high] = [light(one), light(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const paint = (element) => {
    const style = getComputedStyle(element);
    const shape = element instanceof SVGElement && !["svg", "g", "text", "tspan"].includes(element.tagName);
    if (!shape) return element instanceof SVGElement ? [0, 0, 0, 0] : parse(style.backgroundColor);
    const fill = parse(style.fill);
    return [fill[0], fill[1], fill[2], fill[3] * Number(style.fillOpacity) * Number(style.opacity)];
  };
  const ground = (x, y, element) => {
    const stack = document.elementsFromPoint(x, y);
    let colour = [255, 255, 255];
    for (const below of stack.slice(stack.indexOf(element) + 1).reverse()) colour = over(paint(below), colour);
    return element instanceof SVGElement ? colour : over(paint(element), colour);
  };
  const results = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || !element.checkVisibility({ visibilityProperty: true }) || element.closest(innerWidth < 640 ? "thead, defs, style" : "defs, style")) continue;
    const range = document.createRange();
    range.selectNodeContents(walker.currentNode);
    const box = [...range.getClientRects()].find((rect) => rect.width > 1 && rect.height > 1);
    if (!box) continue;
    const svg = element instanceof SVGElement;
    const style = getComputedStyle(element);
    const below = ground(box.x + box.width / 2, box.y + box.height / 2, element);
    const ink = over(parse(svg ? style.fill : style.color), below);
    results.push({ text: walker.currentNode.textContent.trim().slice(0, 40), kind: svg ? "svg" : "html", ratio: ratio(ink, below), ink: ink.map(Math.round).join(), below: below.map(Math.round).join() });
  }
  return results;
}

// Check the contrast of every visible text with its actual background (WCAG 2.2, 1.4.3), the
// accessible name of every control (4.1.2), duplicate ids, and elements beyond the right edge.
() => {
  const faults = [];
  const parse = (text) => (text.match(/[\d.]+/g) ?? []).map(Number);
  const over = ([r, g, b, a = 1], [R, G, B]) => [r * a + R * (1 - a), g * a + G * (1 - a), b * a + B * (1 - a)];
  const light = (rgb) => {
    const [r, g, b] = rgb.map((c) => (c /= 255, c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) layers.push(parse(getComputedStyle(at).backgroundColor));
    return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255]);
  };
  const visible = (element) => element.checkVisibility({ checkVisibilityCSS: true, checkOpacity: true });
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let texts = 0;
  for (let node; (node = walker.nextNode());) {
    const element = node.parentElement;
    const text = node.textContent.trim();
    if (!text || !visible(element) || element.closest(".unseen, script, noscript")) continue;
    texts += 1;
    if (text.includes("[object ")) faults.push(`object as text: ${text.slice(0, 40)}`);
    const style = getComputedStyle(element);
    const ground = behind(element);
    const [a, b] = [light(over(parse(style.color), ground)), light(ground)];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    if (ratio < (large ? 3 : 4.5)) faults.push(`contrast ${ratio.toFixed(2)}: ${text.slice(0, 40)}`);
  }
  // The texts of a report are in a frame.
  if (texts < (document.querySelector("iframe") ? 1 : 5)) faults.push(`only ${texts} texts to check`);
  for (const element of document.querySelectorAll("a, button, input, select, textarea, canvas[tabindex], iframe, [role=img]")) {
    if (!visible(element)) continue;
    const named = element.getAttribute("aria-label") || element.textContent.trim() || element.title
      || [...(element.labels ?? [])].map((label) => label.textContent.trim()).join("");
    if (!named) faults.push(`no name: ${element.outerHTML.slice(0, 80)}`);
  }
  const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
  for (const id of new Set(ids.filter((id, i) => ids.indexOf(id) !== i))) faults.push(`id twice: ${id}`);
  const wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  if (wide > 0) faults.push(`${wide} px wider than the window`);
  return faults;
}

// Elements from values. No text becomes HTML, so nothing that an instance says can become a script.

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  set(element, attributes);
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
}

// Attributes and text are written only when they differ: a status of a thousand tasks changes few of them.
export function attribute(element, name, value) {
  if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

export function text(element, value) {
  if (element.textContent !== value) element.textContent = value;
}

// Keep the elements of these keys, in this order; make those that are missing, remove the others.
export function keyed(parent, known, keys, make) {
  const wanted = new Set(keys);
  for (const [key, element] of known) if (!wanted.has(key)) (element.remove(), known.delete(key));
  keys.forEach((key, index) => {
    if (!known.has(key)) known.set(key, make(key));
    const element = known.get(key);
    if (parent.children[index] !== element) parent.insertBefore(element, parent.children[index] ?? null);
  });
}

export function table(caption, heads, rows) {
  const cell = (value, index) => h("td", { class: heads[index].startsWith("#") ? "number" : null }, value ?? "–");
  return h("div", { class: "scrolls" }, h("table", {},
    h("caption", {}, caption),
    h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col", class: head.startsWith("#") ? "number" : null },
      head.replace("#", ""))))),
    h("tbody", {}, rows.map((row) => h("tr", {}, row.map(cell))))));
}

// Make the children of an element these. What is there already is kept and changed: who has the focus in it keeps it.
export function become(element, ...wanted) {
  wanted.forEach((fresh, index) => {
    const old = element.childNodes[index];
    if (!old) element.append(fresh);
    else if (typeof fresh === "string" || fresh.nodeType !== 1 || old.nodeName !== fresh.nodeName) {
      const said = typeof fresh === "string" ? fresh : fresh.nodeValue;
      if (old.nodeType === 3 && (typeof fresh === "string" || fresh.nodeType === 3)) old.nodeValue === said || (old.nodeValue = said);
      else old.replaceWith(fresh);
    } else {
      for (const name of old.getAttributeNames()) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
      for (const name of fresh.getAttributeNames()) attribute(old, name, fresh.getAttribute(name));
      become(old, ...fresh.childNodes);
    }
  });
  while (element.childNodes.length > wanted.length) element.lastChild.remove();
}

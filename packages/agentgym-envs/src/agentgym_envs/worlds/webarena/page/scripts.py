"""JavaScript that runs on an element (`this`) or in a page, for operations that mouse and keyboard can't perform."""

RELATED = """function (hit) {
  const up = node => node.parentNode || node.host || null;
  const element = node => node.nodeType === 1 ? node : up(node);
  const inside = (node, around) => {
    for (; node; node = up(node)) if (node === around) return true;
    return false;
  };
  const target = element(this);
  const owner = target.closest(
    'label, a, button, summary, [role=button], [role=link], [role=tab], [role=menuitem], [role=option]');
  return [target, owner, ...(target.labels || [])].some(around => around && inside(hit, around));
}"""
"""Whether a click on the node `hit` counts as one on this element: it is inside it, or both are in the same label, link
or button."""

CLICK = "function () { this.click(); }"

CHOOSE = """function (wanted) {
  const plain = text => text.replace(/\\s+/g, ' ').trim();
  const select = this.closest('select');
  if (select.disabled) return {problem: 'is disabled'};
  const options = [...select.options];
  const find = test => wanted === null ? null : options.find(test);
  const option = wanted === null ? this.closest('option') :
    find(o => plain(o.label) === plain(wanted)) || find(o => o.value === wanted) ||
    find(o => plain(o.label).toLowerCase() === plain(wanted).toLowerCase());
  if (!option) return {options: options.map(o => plain(o.label))};
  if (option.disabled || option.parentElement.disabled) return {problem: 'has that option disabled'};
  const before = option.selected;
  select.focus();
  option.selected = wanted !== null || !select.multiple || !before;
  if (option.selected !== before) {
    select.dispatchEvent(new Event('input', {bubbles: true, composed: true}));
    select.dispatchEvent(new Event('change', {bubbles: true}));
  }
  return {};
}"""
"""Choose an option of the list that this element is or belongs to, by label or value. Null chooses this option, or
toggles it in a list with multiple selection. Returns a `problem`, or the available `options` if none matches."""

FOCUS = "function () { this.focus(); }"

SET = """function (value) {
  const before = this.value;
  Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value').set.call(this, value);
  if (value && !this.value) {
    Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value').set.call(this, before);
    return false;
  }
  this.focus();
  this.dispatchEvent(new Event('input', {bubbles: true, composed: true}));
  this.dispatchEvent(new Event('change', {bubbles: true}));
  return true;
}"""
"""Set a field's value, bypassing a framework's override of the property. Returns false if the field rejects it."""

PREPARE = """function () {
  const others = ['button', 'checkbox', 'color', 'file', 'hidden', 'image', 'radio', 'range', 'reset', 'submit'];
  const takes = e => e && (e.isContentEditable || e.tagName === 'TEXTAREA' ||
    (e.tagName === 'INPUT' && !others.includes(e.type)));
  const element = this.nodeType === 1 ? this : this.parentElement;
  let field = element.ownerDocument.activeElement;
  for (let inner = field; inner;) {
    const below = inner.shadowRoot || inner.contentDocument;
    inner = below && below.activeElement;
    field = inner || field;
  }
  if (!takes(field) && takes(element)) {
    element.focus();
    field = element;
  }
  if (!takes(field)) return {problem: 'takes no text'};
  if (field.disabled) return {problem: 'is disabled'};
  if (field.readOnly) return {problem: 'is read-only'};
  if (field.isContentEditable) field.ownerDocument.getSelection().selectAllChildren(field);
  else field.select();
  return {lines: field.tagName !== 'INPUT', filled: !!(field.isContentEditable ? field.textContent : field.value)};
}"""
"""Select the content of the field that a click on this element has focused. Returns a `problem`, or whether the field
takes several `lines` and is `filled`."""

SCROLL = """sign => {
  const go = (box, by) => {
    const before = box.scrollTop;
    box.scrollBy({top: sign * by, behavior: 'instant'});
    return box.scrollTop !== before;
  };
  const root = document.scrollingElement || document.documentElement;
  if (go(root, innerHeight)) return true;
  const area = box => {
    const {left, top, right, bottom} = box.getBoundingClientRect();
    const wide = Math.min(right, innerWidth) - Math.max(left, 0);
    const high = Math.min(bottom, innerHeight) - Math.max(top, 0);
    return wide > 0 && high > 0 ? wide * high : 0;
  };
  return [...document.querySelectorAll('*')]
    .filter(box => box.scrollHeight > box.clientHeight + 1 && box.clientHeight > 0 && area(box) > 0)
    .filter(box => /auto|scroll/.test(getComputedStyle(box).overflowY))
    .sort((one, other) => area(other) - area(one))
    .some(box => go(box, box.clientHeight));
}"""
"""Scroll the page, or else its largest visible scrollable part, by its height. Returns false if nothing moved."""

SELECTED = """() => {
  let field = document.activeElement;
  for (let inner = field; inner;) {
    const below = inner.shadowRoot || inner.contentDocument;
    inner = below && below.activeElement;
    field = inner || field;
  }
  if (field && field.type === 'password') return '';
  return (field ? field.ownerDocument : document).getSelection().toString();
}"""
"""Return the selected text in the focused document; empty in a password field, as in browsers."""

SCROLL_PART = """function (sign) {
  const element = this.nodeType === 1 ? this : this.parentElement;
  for (let box = element; box && box !== box.ownerDocument.scrollingElement; box = box.parentElement) {
    const scrolls = /auto|scroll/.test(getComputedStyle(box).overflowY) || box.tagName === 'TEXTAREA';
    if (!scrolls || box.clientHeight === 0 || box.scrollHeight <= box.clientHeight + 1) continue;
    const before = box.scrollTop;
    box.scrollBy({top: sign * box.clientHeight, behavior: 'instant'});
    return box.scrollTop !== before;
  }
  return null;
}"""
"""Scroll the innermost scrollable part that this element is or that it is in, by its height. Returns whether it moved,
or null if there is none."""

SELECT_TEXT = """function (wanted) {
  const words = wanted.trim().split(/\\s+/).filter(word => word)
    .map(word => word.replace(/[.*+?^${}()|[\\]\\\\]/g, '\\\\$&'));
  const find = text => {
    const found = words.length ? new RegExp(words.join('\\\\s+')).exec(text) : text.trim() && [text];
    return found && {start: found.index || 0, end: (found.index || 0) + found[0].length};
  };
  if (this.tagName === 'TEXTAREA' || (this.tagName === 'INPUT' && typeof this.selectionStart === 'number')) {
    const part = find(this.value);
    if (!part) return this.value ? 'missing' : 'none';
    this.focus();
    this.setSelectionRange(part.start, part.end);
    return 'selected';
  }
  const page = this.ownerDocument;
  const textsOf = node => {
    const texts = [], walker = page.createTreeWalker(node, NodeFilter.SHOW_TEXT);
    if (node.nodeType === 3) texts.push(node);
    else while (walker.nextNode()) texts.push(walker.currentNode);
    return texts;
  };
  let texts, part;
  for (let around = this; around && !part; around = words.length ? around.parentNode : null) {
    texts = textsOf(around);
    part = find(texts.map(node => node.data).join(''));
  }
  if (!part) return textsOf(this).some(node => node.data.trim()) ? 'missing' : 'none';
  const range = page.createRange();
  let offset = 0;
  for (const node of texts) {
    const end = offset + node.length;
    if (part.start >= offset && part.start < end) range.setStart(node, part.start - offset);
    if (part.end > offset && part.end <= end) range.setEnd(node, part.end - offset);
    offset = end;
  }
  const selection = page.getSelection();
  selection.removeAllRanges();
  selection.addRange(range);
  return 'selected';
}"""
"""Select the first occurrence of a text in this field or element, or else in the smallest element around it that has
it, without regard to the kind of white space; or all of its text if the text is empty. Returns `selected`, `missing`,
or `none` if there is no text at all."""

"""JavaScript that runs on an element (`this`) or in a page, for what mouse and keyboard can't do or find out."""

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
"""Whether clicking what is hit (a node) is clicking this: it is inside it, or both are in one label, link or button."""

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
"""Choose an option of the list that this is, or is in: by label or value, or this one (null), which in a list that
takes several turns it on or off. Tells what is the `problem`, or which `options` there are."""

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
"""Give a field a value, past what a framework may have put before the property. False when it doesn't take it."""

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
"""Select what stands in the field that a click on this has put the cursor in. Tells what is the `problem`, or whether
the field takes several `lines` and is `filled`."""

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
"""Scroll the page, or the largest part in sight that can be, by what it shows at once. False when nothing moved."""

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
"""The text that is selected where the cursor is; nothing of a password, as browsers have it."""
